"""Errors of the attention output in the record, against plain float64 attention: no code of the captures is used."""

import pytest
import torch
from torch import Tensor

from benchmarks.architectures import tiny_of
from kvq_core.engine.rows import Rows
from kvq_core.models import LoadedModel
from kvq_core.models.scoring import Scoring
from kvq_core.pipeline.batch import Batch
from kvq_core.pipeline.compare import compare_on
from kvq_core.record.events import Finished
from kvq_core.spec import ComparisonSpec, Lane
from tests.support.tiny_models import tiny

LANES = (
    Lane(label="kivi", method="kivi", knobs={"group_size": 8, "residual_length": 8}),
    Lane(label="keys", method="kivi", knobs={"group_size": 8, "residual_length": 8}, tensors="keys"),
)
PROMPT = "The harbour keeps its tide tables by hand, and the brass gauge has a paper drum that nobody has replaced."
CONTINUATIONS = {"generated": None, "one token": None, "forced": " since the harbour master wound the clock and left."}
ARCHITECTURES = ("llama", "granite", "gemma2")


# windows with a soft-cap beside full attention, sinks, RoPE by layer, no RoPE, query heads by layer, linear attention,
# a state space, attention beside one, convolution, chunks, heads of two sizes and layers that read another's keys and
# values, the same with heads of one size, values of other channels, fused projections, dropped arguments
MECHANISMS = (
    "gemma2 gpt_oss gemma3_text smollm3 laguna qwen3_next bamba falcon_h1 lfm2 llama4_text gemma4_text gemma3n_text "
    "mimo_v2_flash gpt_neox stablelm"
).split()


class Attention:
    """Full-precision attention of a model over all tokens at once, float64, scored as the model hands over itself."""

    def __init__(self, model: LoadedModel, ids: list[int]):
        self.queries: dict[int, Tensor] = {}
        self.how: dict[int, Scoring] = {}
        model.forward(torch.tensor([ids]), 0, self)

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        q, k, v = (x[0].double() for x in (queries, keys, values))
        self.queries[layer], self.how[layer] = q, how
        heads = [attended(q[h], *(x[h // (len(q) // len(k))] for x in (k, v)), how, h) for h in range(len(q))]
        return torch.stack(heads, 1)[None].float()


def attended(queries: Tensor, keys: Tensor, values: Tensor, how: Scoring, head: int) -> Tensor:
    """The last of the queries (n, head_dim) is at the last key."""
    n, total = len(queries), len(keys)
    found = []
    for i, q in enumerate(queries):
        end = total - n + 1 + i
        first = max(0, end - how.window) if how.window else (end - 1) // how.chunk * how.chunk if how.chunk else 0
        seen = slice(first, end)
        scores = how.scaling * keys[seen] @ q
        scores = scores if how.softcap is None else how.softcap * torch.tanh(scores / how.softcap)
        sink = scores[:0] if how.sinks is None else how.sinks[head : head + 1].double()
        found.append(torch.softmax(torch.cat([scores, sink]), 0)[: len(scores)] @ values[seen])
    return torch.stack(found)


RUNS = [(name, how) for name in ARCHITECTURES for how in CONTINUATIONS]


@pytest.fixture(params=[*RUNS, *((f"tiny {kind}", "generated") for kind in MECHANISMS)], ids=" ".join)
def finished(request, smollm, monkeypatch):
    """A run, the caches of all rows at its end (by kind, row and layer), and plain attention over its tokens."""
    name, how = request.param
    kind = name.removeprefix("tiny ")
    held: dict[tuple[str, int, int], Tensor] = {}
    model = tiny(name, tokenizer=smollm.tokenizer) if kind == name else tiny_of(kind, smollm.tokenizer)
    close = Batch._close

    def keep(batch: Batch, rows: Rows) -> None:
        for kind in ("key", "value"):
            for row in range(1 + len(LANES)):
                for g, group in enumerate(batch.prefill.groups):
                    for i, layer in enumerate(group.layers):
                        held[kind, row, layer] = rows.working(row, g, kind, i).double()
        close(batch, rows)

    monkeypatch.setattr(Batch, "_close", keep)
    spec = ComparisonSpec(
        prompt=PROMPT,
        chat=False,
        continuation=CONTINUATIONS[how],
        max_new_tokens=2 if how == "one token" else 9,
        ignore_eos=True,
        lanes=LANES,
    )
    last = next(event for event in compare_on(model, spec) if isinstance(event, Finished))
    reference = last.record.reference
    plain = Attention(model, [*reference.prompt_token_ids, *reference.token_ids[:-1]])
    return last.record, last.arrays, held, plain


@pytest.mark.long("combine", sample=8)
def test_output_errors_are_those_of_plain_attention(finished) -> None:
    record, arrays, held, plain = finished
    env, prompt = record.environment, len(record.reference.prompt_token_ids)
    groups = env.query_heads // env.kv_heads
    steps = record.capture.attention_steps
    assert steps[-1] == len(record.reference.token_ids) - 2  # the last one scored is among them
    looked = [
        layer for layer, kind in enumerate(env.kinds or [None] * env.layers) if kind is None or kind["kind"] == "full"
    ]
    assert looked
    for layer in looked:
        for head in range(env.query_heads):
            how, q = plain.how[layer], plain.queries[layer][head]
            (k0, v0), *lanes = (
                [held[kind, row, layer][head // groups] for kind in ("key", "value")] for row in range(3)
            )
            assert len(k0) == len(q)
            for lane, (k, v) in enumerate(lanes):
                change = attended(q[-1:], k, v, how, head) - attended(q[-1:], k0, v0, how, head)
                of_lane = {
                    name: arrays[f"lane/{lane}/output_{name}"][layer, head] for name in ("error", "bound", "relative")
                }
                assert of_lane["error"].item() == pytest.approx(change.norm().item(), rel=2e-3, abs=1e-6)
                shift = ((k - k0) @ q[-1]).abs().sum() * how.scaling
                bound = v.norm() / 2 * shift + (v - v0).norm(dim=-1).sum()
                assert of_lane["bound"].item() == pytest.approx(bound.item(), rel=1e-3)
                true, read = (
                    torch.cat(
                        [
                            attended(q[prompt + s : prompt + s + 1], *(x[: prompt + s + 1] for x in pair), how, head)
                            for s in steps
                        ]
                    )
                    for pair in ((k0, v0), (k, v))
                )
                expected = ((read - true).norm() / true.norm()).item()
                assert of_lane["relative"].item() == pytest.approx(expected, rel=2e-3)
                if head % groups == 0:
                    for kind, x, true in (("key", k, k0), ("value", v, v0)):
                        error = arrays[f"lane/{lane}/{kind}_error"][layer, head // groups].item()
                        assert error == pytest.approx(((x - true).norm() / true.norm()).item(), rel=1e-4)
            for at, step in enumerate(steps):
                end = prompt + step + 1
                mass = attended(q[end - 1 : end], k0[:end], torch.eye(end, 4).double(), how, head).sum()
                assert arrays["reference/sink_mass"][at, layer, head].item() == pytest.approx(mass.item(), abs=1e-5)
    for name in ("lane/0/output_error", "lane/0/key_error", "reference/sink_mass"):
        blank = sorted(set(range(env.layers)) - set(looked))
        assert not arrays[name].movedim(1, 0)[blank].any() if "mass" in name else not arrays[name][blank].any()
    metrics = record.lanes[0].metrics
    assert metrics.output_error == pytest.approx(arrays["lane/0/output_error"][looked].mean().item())
