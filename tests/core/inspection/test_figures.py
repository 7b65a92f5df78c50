"""What a model is and what its states are like: facts, and figures against a direct computation."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.architectures import tiny_of
from kvq_core.cli.inspect import describe_inspection
from kvq_core.inspection import inspect_model
from kvq_core.inspection.figures import QUERIES, effective_rank
from kvq_core.inspection.fits import PLANNED, fit_here, fit_of_loaded
from kvq_core.inspection.look import NOT_LOOKED, TOKENS, Look, formats_of
from kvq_core.inspection.report import spans
from kvq_core.models import LoadedModel
from kvq_core.models.bundled import bundled_gguf
from kvq_core.sizing.fit import FitRequest
from tests.support.reading_models import Letters, small


@pytest.mark.slow
def test_facts_are_those_of_the_weights() -> None:
    model = small("qwen2")
    facts = inspect_model(model, remedies=False).facts
    assert (facts.query_heads, facts.kv_heads, facts.query_groups, facts.head_dim) == (4, 2, 2, 32)
    assert facts.token_bytes == 3 * 2 * 2 * 2 * 32  # layers, keys and values, bytes, heads, channels
    weights = [layer.self_attn.k_proj.bias.norm().item() for layer in model.model.model.layers]
    assert [layer.key_bias for layer in facts.layers] == pytest.approx(weights)
    assert [layer.rope for layer in facts.layers] == ["rope"] * 3
    assert facts.usual_bias == pytest.approx(sorted(weights)[1])


@pytest.mark.slow
def test_a_norm_behind_the_projection_is_told() -> None:
    facts = inspect_model(small("qwen3"), remedies=False).facts
    assert [layer.key_norm_gain for layer in facts.layers] == pytest.approx([1.0] * 3)  # its weights are ones
    assert {layer.key_bias for layer in facts.layers} == {None}


def test_figures_against_a_direct_computation() -> None:
    seen = Look(small("qwen2"))
    group, rope = seen.prefill.groups[0], seen.model.rope(TOKENS)
    for figures, keys, values, queries in zip(seen.figures, group.keys, group.values, group.queries, strict=True):
        before = rope.unrotate(keys[None], 0)[0].double()
        mean = before.mean(1, keepdim=True)
        around = (before - mean).square().sum().div(TOKENS).sqrt()
        assert figures.constant == pytest.approx((mean.norm() / around).item(), rel=1e-4)
        rms = keys.double().square().mean(1).sqrt()
        largest = max((head.max() / head.median()).item() for head in rms)
        assert figures.key_outliers == pytest.approx(largest, rel=1e-4)
        side = (before - mean).transpose(0, 1).flatten(1)
        assert figures.key_rank == pytest.approx(_entropy_rank(side), rel=1e-3)
        side = (values.double() - values.double().mean(1, keepdim=True)).transpose(0, 1).flatten(1)
        assert figures.value_rank == pytest.approx(_entropy_rank(side), rel=1e-3)
        assert figures.first_tokens == pytest.approx(_first_tokens(queries.double(), keys.double()), rel=1e-4)


def _entropy_rank(matrix: Tensor) -> float:
    shares = torch.linalg.svdvals(matrix)
    shares = shares / shares.sum()
    return math.exp(-sum(share * math.log(share) for share in shares.tolist() if share > 0))


def _first_tokens(queries: Tensor, keys: Tensor) -> float:
    total, count = 0.0, 0
    for head, query in enumerate(queries):
        for t in range(TOKENS - QUERIES, TOKENS):
            scores = query[t] @ keys[head // 2, : t + 1].T / math.sqrt(keys.shape[-1])
            total, count = total + scores.softmax(0)[:4].sum().item(), count + 1
    return total / count


def test_score_errors_against_a_direct_computation() -> None:
    """Keys rounded per token in groups of 32 channels, by hand, and the scores of the last queries in float64."""
    seen = Look(small("llama"))
    group = seen.prefill.groups[0]
    for figures, keys, queries in zip(seen.figures, group.keys, group.queries, strict=True):
        low, high = keys.amin(-1, keepdim=True).half().float(), keys.amax(-1, keepdim=True)
        scale = ((high - keys.amin(-1, keepdim=True)) / 15).half().float()
        delta = (((keys - low) / scale).round().clamp(0, 15) * scale + low - keys).double()
        squares, count = 0.0, 0
        for head, query in enumerate(queries.double()):
            for t in range(TOKENS - QUERIES, TOKENS):
                row = query[t] @ delta[head // 2, : t + 1].T / math.sqrt(32)
                squares, count = squares + (row - row.mean()).square().sum().item(), count + t + 1
        assert figures.score_error == pytest.approx(math.sqrt(squares / count), rel=2e-2)


def test_effective_rank_of_known_spectra() -> None:
    assert effective_rank(torch.ones(7)) == pytest.approx(7)
    assert effective_rank(torch.tensor([3.0, 0, 0])) == pytest.approx(1)


@pytest.mark.slow
def test_bytes_of_formats_are_those_of_a_run() -> None:
    """fp16 exactly, KIVI by hand: 2 bits and an fp16 pair each 32 elements, and the windows in fp16."""
    formats = {each.method: each for each in inspect_model(small("llama"), remedies=False).formats}
    elements = 3 * 2 * 32  # layers, heads, channels: of a token's keys, and of its values
    assert formats["fp16"].nbytes[2048] == 2048 * elements * 2 * 2
    assert formats["fp16"].nbytes[131_072] == 64 * formats["fp16"].nbytes[2048]
    packed = 3 / 8  # bytes an element
    assert formats["kivi"].nbytes[2048] == elements * (2048 * packed + (2048 - 32) * packed + 32 * 2)
    codes, norms = 2048 * elements * 2 // 8, 2 * 3 * 2048 * 2  # a bit an element, and a norm a token and layer
    assert formats["commvq"].nbytes[2048] == codes + norms
    assert formats["commvq"].counted == ("commvq: codebooks, by formula",)


def test_bytes_of_formats_are_those_that_say_what_fits(smollm: LoadedModel) -> None:
    """Layers that a format leaves in fp16, such as TurboQuant's first and last two, are counted once in a model."""
    looked = {each.method: each.nbytes[8192] for each in formats_of(smollm) if each.nbytes}
    fits = fit_of_loaded(smollm, FitRequest(context=8192)).formats
    alike = {each.method: each.tensors for each in fits if not each.knobs}
    assert len(alike) > 15 and alike["turboquant"] != alike["fp16"]
    assert alike == {name: looked[name] for name in alike}


def test_what_fits_counts_the_file_that_weights_came_from_before_and_after_they_are_loaded(smollm: LoadedModel) -> None:
    loaded = fit_of_loaded(smollm, PLANNED)
    assert loaded.weights.nbytes == smollm.weights_bytes == bundled_gguf().stat().st_size
    here = fit_here(smollm.id)
    assert here is not None and (here.weights, here.formats) == (loaded.weights, loaded.formats)


@pytest.mark.slow
@pytest.mark.few(sample=2)
@pytest.mark.parametrize(
    ("kind", "unlike"),
    [
        ("gemma3_text", {"windows of 24 tokens": [0, 2], "RoPE base 10,000": [0, 2]}),
        ("gemma2", {"windows of 24 tokens": [0, 2], "soft-cap 50": [0, 1, 2, 3]}),
        ("gpt_oss", {"windows of 24 tokens": [0, 2], "attention sinks": [0, 1, 2, 3]}),
        ("qwen3_next", {"state": [0, 1, 2]}),
        ("smollm3", {"without RoPE": [1, 3]}),
        ("gemma3n_text", {"reading the keys of layer 1": [3, 4], "reading the keys of layer 2": [5]}),
        ("mistral", {"windows of 24 tokens": [0, 1, 2, 3]}),
    ],
)
def test_layers_are_told_by_what_they_are(kind: str, unlike: dict[str, list[int]]) -> None:
    """And a model none of whose layers attends to all tokens is told apart from one at no risk."""
    model = replace(tiny_of(kind), tokenizer=Letters(), model_hash=f"kinds-{kind}")
    found = inspect_model(model, remedies=False)
    assert unlike.items() <= found.facts.unlike.items()
    assert [own.layer for own in found.figures] == list(model.shape.captured)
    assert (found.sentence == NOT_LOOKED) == (kind == "mistral")
    said = describe_inspection(found)
    for what, layers in unlike.items():
        assert f"layers {spans(layers)}: {what}" in said
    rows = [line.split()[0] for line in said.splitlines() if line[:1].isdigit()]
    assert [row for row in rows if row.isdigit()][: len(found.figures)] == [str(own.layer) for own in found.figures]


@pytest.mark.slow
def test_the_gain_of_a_norm_is_what_it_does() -> None:
    """Gemma's norms multiply with one more than their weights."""
    model = replace(tiny_of("gemma3_text"), tokenizer=Letters(), model_hash="gain")
    weight = model.model.model.layers[1].self_attn.k_norm.weight
    gain = inspect_model(model, remedies=False).facts.layers[1].key_norm_gain
    assert gain == pytest.approx((1 + weight).square().mean().sqrt().item(), rel=1e-4)
