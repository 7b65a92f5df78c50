"""Looking at a model before a run: facts, figures, remedies, and which layers are said to be at risk."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.architectures import tiny_of
from kvq_core.cli.inspect import describe
from kvq_core.cli.main import main
from kvq_core.errors import ModelError
from kvq_core.inspection import inspect_model, look
from kvq_core.inspection.figures import QUERIES, effective_rank
from kvq_core.inspection.look import FORCED, NOT_LOOKED, TOKENS, Look, stored_inspection
from kvq_core.inspection.remedies import PLAIN, Measured, remedy_lanes
from kvq_core.inspection.report import Remedy, spans
from kvq_core.inspection.risk import NOTHING, known_of, sentence_of
from kvq_core.inspection.rules import published, rules
from kvq_core.models import LoadedModel, load
from kvq_core.spec import Lane, Stress
from tests.support.tiny_models import VOCABULARY, tiny


class Letters:
    """A token a character; what it decodes, it encodes to the same tokens."""

    chat_template = None
    eos_token_id = 2

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [3 + ord(c) % (VOCABULARY - 3) for c in text]}

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(0x1000 * (VOCABULARY - 3) + id - 3) for id in ids)


def small(name: str, constant: float = 0.0, layer: int = 1) -> LoadedModel:
    """A tiny model that reads text; ``constant``: what its keys of one layer carry, by the bias of the projection."""
    model = replace(tiny(name), tokenizer=Letters(), model_hash=f"{name}-{constant:g}-{layer}")
    if not constant:
        return model
    held = model.model
    bias = held.model.layers[layer].self_attn.k_proj.bias
    changed = type(held)(held.config)
    changed.load_state_dict(held.state_dict())
    with torch.no_grad():
        changed.model.layers[layer].self_attn.k_proj.bias.copy_(bias * constant)
    changed.set_attn_implementation(held.config._attn_implementation)
    return replace(model, model=changed.eval().requires_grad_(False))


@pytest.fixture(autouse=True)
def _nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "_memo", lambda model: tmp_path / f"{model.model_hash}.json")


def test_facts_are_those_of_the_weights() -> None:
    model = small("qwen2")
    facts = inspect_model(model, remedies=False).facts
    assert (facts.query_heads, facts.kv_heads, facts.query_groups, facts.head_dim) == (4, 2, 2, 32)
    assert facts.token_bytes == 3 * 2 * 2 * 2 * 32  # layers, keys and values, bytes, heads, channels
    weights = [layer.self_attn.k_proj.bias.norm().item() for layer in model.model.model.layers]
    assert [layer.key_bias for layer in facts.layers] == pytest.approx(weights)
    assert [layer.rope for layer in facts.layers] == ["rope"] * 3
    assert facts.usual_bias == pytest.approx(sorted(weights)[1])


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


def test_a_layer_that_carries_a_constant_is_named_with_its_cure() -> None:
    found = inspect_model(small("qwen2", constant=60, layer=1))
    assert found.at_risk_layers == (1,)
    (reason,) = found.reasons
    assert reason.cause == "constant"
    biases = sorted(layer.key_bias or 0 for layer in found.facts.layers)
    assert reason.times == pytest.approx(biases[-1] / biases[1])
    assert found.sentence.startswith("Keys of layer 1 carry constants ")
    assert "per-token and inner-grouped keys under 8 bits are at risk" in found.sentence
    by_name = {remedy.name: remedy for remedy in found.remedies}
    assert list(by_name) == ["Centre the keys", "Keys per channel", "8-bit keys", "Layer 1 in fp16"]
    assert found.plain_kld is not None
    assert (by_name["Centre the keys"].kld or 0) < found.plain_kld / rules().gain.value
    assert by_name["Centre the keys"].extra_bytes == 3 * 2 * 2 * 32 == by_name["Centre the keys"].fixed_bytes
    assert f"Cheapest remedy measured: centre the keys, 384 bytes (KLD {found.plain_kld:.2g} to" in found.sentence


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral", "granite"])
def test_random_models_raise_no_alarm(name: str) -> None:
    found = inspect_model(small(name), remedies=False)
    assert (found.at_risk_layers, found.sentence) == ((), NOTHING)
    assert "safe" not in found.sentence


def test_outlier_channels_are_told_from_constants() -> None:
    seen = Look(small("llama"), stress=Stress(key_outlier_scale=300, key_outlier_pairs=1, layers=(2,)))
    found = seen.inspection(with_remedies=False)
    assert found.at_risk_layers == (2,)
    assert found.reasons[0].cause == "outlier channels"
    assert found.reasons[0].times == pytest.approx(seen.figures[2].key_outliers)
    assert "have channels" in found.sentence


def test_bytes_of_formats_are_those_of_a_run() -> None:
    """fp16 exactly, KIVI by hand: 2 bits and an fp16 pair each 32 elements, and the windows in fp16."""
    formats = {each.method: each for each in inspect_model(small("llama"), remedies=False).formats}
    elements = 3 * 2 * 32  # layers, heads, channels: of a token's keys, and of its values
    assert formats["fp16"].nbytes[2048] == 2048 * elements * 2 * 2
    assert formats["fp16"].nbytes[131_072] == 64 * formats["fp16"].nbytes[2048]
    packed = 3 / 8  # bytes an element
    assert formats["kivi"].nbytes[2048] == elements * (2048 * packed + (2048 - 32) * packed + 32 * 2)
    assert formats["commvq"].nbytes == {}
    assert "codebooks" in (formats["commvq"].why_not or "")


def test_a_remedys_bytes_are_those_of_its_lane() -> None:
    found = inspect_model(small("qwen2"))
    by_name = {remedy.name: remedy for remedy in found.remedies}
    elements = 3 * 2 * 32
    assert by_name["8-bit keys"].extra_bytes == found.bytes_at * elements * 4 // 8
    per_channel = 31 * elements * (16 - 5) / 8  # tokens that wait for a group, at most 31 of them, in fp16
    assert by_name["Keys per channel"].extra_bytes == pytest.approx(per_channel, abs=1)
    assert [Lane.model_validate(remedy.lane).label for remedy in found.remedies] == list(by_name)


@pytest.mark.slow
def test_what_was_found_is_kept_by_the_models_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("llama")
    assert stored_inspection(model) is None
    first = inspect_model(model, remedies=False)
    assert stored_inspection(model) == first
    whole = inspect_model(model)  # remedies were not among what is kept
    monkeypatch.setattr(Look, "inspection", lambda *_: pytest.fail("it is kept"))
    assert inspect_model(model) == inspect_model(model, remedies=False) == whole != first
    assert stored_inspection(replace(model, model_hash="another")) is None
    monkeypatch.setattr("kvq_core.inspection.look.VERSION", 0)
    assert stored_inspection(model) is None


def test_a_model_of_a_short_context_is_refused_in_words() -> None:
    model = small("llama")
    model.shape = replace(model.shape, context=200)
    with pytest.raises(ModelError, match=f"takes 200 tokens .* {TOKENS + FORCED + 1} are needed"):
        inspect_model(model)


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
    said = describe(found)
    for what, layers in unlike.items():
        assert f"layers {spans(layers)}: {what}" in said
    rows = [line.split()[0] for line in said.splitlines() if line[:1].isdigit()]
    assert [row for row in rows if row.isdigit()][: len(found.figures)] == [str(own.layer) for own in found.figures]


def test_the_gain_of_a_norm_is_what_it_does() -> None:
    """Gemma's norms multiply with one more than their weights."""
    model = replace(tiny_of("gemma3_text"), tokenizer=Letters(), model_hash="gain")
    weight = model.model.model.layers[1].self_attn.k_norm.weight
    gain = inspect_model(model, remedies=False).facts.layers[1].key_norm_gain
    assert gain == pytest.approx((1 + weight).square().mean().sqrt().item(), rel=1e-4)


def test_exempting_every_layer_is_no_remedy() -> None:
    assert not [name for name in remedy_lanes(range(3), (0, 1, 2)) if "fp16" in name]
    lanes = remedy_lanes(range(9), (0, 1, 2, 8))
    assert lanes["Layers 0-2, 8 in fp16"].layers == (3, 4, 5, 6, 7)
    assert {lane.tensors for lane in lanes.values()} == {"keys"} == {PLAIN.tensors}
    assert (spans([4]), spans([0, 1, 3, 4, 5])) == ("4", "0-1, 3-5")


def test_the_sentence_names_no_remedy_that_does_not_help() -> None:
    found = inspect_model(small("qwen2", constant=60))
    useless = [Remedy(name="8-bit keys", lane={}, kld=0.9, extra_bytes=1)]
    said = sentence_of(found.facts, found.reasons, useless, 1.0, rules())
    assert "even at 8 bits" in said
    assert said.endswith("No remedy measured here helps enough.")


@pytest.mark.parametrize(
    ("name", "families"),
    [
        ("Qwen/Qwen2.5-Coder-0.5B-Instruct", {"Qwen2 and Qwen2.5"}),
        ("Qwen2.5-7B-Instruct-Q4_K_M", {"Qwen2 and Qwen2.5", "Qwen2.5-7B"}),
        ("Qwen/Qwen3-0.6B", {"small Qwen3"}),
        ("Qwen/Qwen3-32B", set()),
        ("openai/gpt-oss-20b", {"gpt-oss"}),
        ("google/gemma-4-E2B", {"Gemma 4"}),
        ("google/gemma-2-2b", set()),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", set()),
    ],
)
def test_what_is_published_is_told_of_its_family(name: str, families: set[str]) -> None:
    assert {each.family for each in published() if each.meant(name)} == families
    assert all("(" in said and said.split(": ")[0] in families for said in known_of(name))


def test_the_layers_it_names_are_those_whose_exemption_helps(second_model: str) -> None:
    """Keys and values per token at 3 bits ruin the second model; with the named layers in fp16 they do not."""
    model = load(second_model)
    found = inspect_model(model, remedies=False)
    assert {0, 1, 2, 8} <= set(found.at_risk_layers)
    assert len(found.at_risk_layers) <= 8
    assert {reason.cause for reason in found.reasons} == {"constant"}
    assert max(reason.times for reason in found.reasons) > 30
    left = tuple(layer for layer in range(24) if layer not in found.at_risk_layers)
    plain, exempt = (
        Lane(label=name, method="per_token", knobs={"bits": 3, "residual_length": 0}, layers=layers)
        for name, layers in (("plain", "all"), ("exempt", left))
    )
    klds = Look(model).measured([plain, exempt])
    assert all(isinstance(each, Measured) for each in klds.values())
    assert klds["plain"].kld > 5 * klds["exempt"].kld  # type: ignore[union-attr]


def test_the_bundled_model_has_no_known_risk(smollm: LoadedModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", smollm.id, "--no-remedies", "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (told["at_risk_layers"], told["sentence"]) == ([], NOTHING)
    assert len(told["figures"]) == 30
    assert main(["inspect", smollm.id]) == 0
    shown = capsys.readouterr().out
    for words in (NOTHING, "30 layers, 9 query heads on 3 KV heads (GQA 3)", "Centre the keys", "131,072 tokens"):
        assert words in shown
