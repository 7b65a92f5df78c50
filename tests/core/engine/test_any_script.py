"""Any lane, in any chunks and turns, against a loop that decodes its whole store before every layer of every pass."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.architectures import tiny_of
from kvq_core.engine.cache import KINDS, LaneCache
from kvq_core.engine.decode import Decode
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.script import Script
from kvq_core.errors import SpecError
from kvq_core.models import LoadedModel
from kvq_core.models.scoring import Scoring, causal_attention
from kvq_core.spec import ComparisonSpec, Lane, parse_lane
from tests.support.tiny_models import CONFIGS, SCALED, prompt_ids, tiny

MODELS = [*CONFIGS, *SCALED, "gemma3_text", "gpt_oss", "cohere2"]
SMALL = {"group_size": 8, "residual_length": 8}
FORMATS = [
    {"method": "kivi", "knobs": SMALL},
    {"method": "kivi", "knobs": {**SMALL, "bits": 4, "sink_tokens": 3}},
    {"method": "per_token", "knobs": {"bits": 8, "group_size": 8, "residual_length": 0}},
    {"method": "per_token", "knobs": {"bits": 4, "group_size": 8, "residual_length": 5}, "sliding": True},
    {"method": "per_channel", "knobs": {**SMALL, "bits": 4}},
    {"method": "squat", "knobs": {**SMALL, "block_size": 8, "rope": "pre"}},
    {"method": "innerq", "knobs": {"group_size": 8, "sink_tokens": 4, "recent_tokens": 8}},
    {"method": "bf16"},
    {"method": "fp16"},
]
TOKENS = st.sampled_from(["all", "all", "all", "first:5", "last:9", [[3, 9], [20, 21]]])
TRANSFORMS = st.sampled_from([{}, {}, {"center": "mean"}, {"rotate": "hadamard"}, {"rotate": "signed"}])


class Loop:
    """One row by itself: what its cache holds is decoded anew for every pass, and nothing is kept beside it."""

    def __init__(self, model: LoadedModel, cache: LaneCache):
        self.model, self.cache = model, cache
        self.states = model.states()

    def read(self, ids: list[int], start: int, prompt: bool) -> Tensor:
        """What the head reads of tokens that enter together, each reading its own pass as computed, or, not of a
        ``prompt``, as the cache takes them."""
        new: dict[tuple[int, str], Tensor] = {}
        parts = self.cache.by_layer()

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
            holder = how.holder(layer)
            read = []
            for kind, x in zip(KINDS, (keys, values), strict=True):
                part, at = parts[holder][kind]
                if how.reads is None:
                    new[layer, kind] = x[0]
                own = new[holder, kind]
                if not prompt:
                    own = own.to(part.stream.enters).float()
                    if part.rope is not None:
                        rope = part.rope.on([at])
                        own = rope.rotate(rope.unrotate(new[holder, kind][None], start).to(torch.float16), start)[0]
                held = torch.cat([piece[at] for _, piece in self.cache.pieces(part)], -2)
                read.append(torch.cat([held, own], -2)[None])
            return causal_attention(queries, read[0], read[1], how)

        hidden = self.model.hidden(torch.tensor([ids]), start, attend, self.states)[0]
        for part in self.cache.parts:
            x = torch.stack([new[layer, part.kind] for layer in part.of_model(self.cache.layers)])
            self.cache.enter(part, x.float(), start, prompt)
        return hidden


def expected(model: LoadedModel, prefill: SharedPrefill, lane: Lane, script: Script, follow: list[int]) -> Tensor:
    """What the head reads after the first pass, of the prompt and of the tokens that follow it."""
    first, chunks = script.segments[0].end, lane.chunks
    begun = first if chunks is None else min(first, chunks.chunk)
    groups = prefill.groups
    if chunks is None or chunks.fit == "first_chunk":
        groups = [group.first(begun) for group in groups]
    loop = Loop(model, LaneCache.of_prompt(lane, groups, model.rope(256), model.ref, None, begun, first))
    ids, found = script.ids, []
    for segment in script.segments:
        size = 1 if segment.answered else (segment.end - segment.start if chunks is None else chunks.chunk)
        for start in range(max(begun, segment.start), segment.end, size):
            end = min(start + size, segment.end)
            found.append(loop.read(ids[start:end], start, not segment.answered))
    found += [loop.read([token], len(ids) + at, False) for at, token in enumerate(follow[:-1])]
    return torch.cat(found)


def drawn_lane(data: st.DataObject) -> Lane | None:
    """Of one to three rules, read in any chunks; None where that is refused."""
    rules: list[dict[str, Any]] = []
    for _ in range(data.draw(st.integers(1, 3))):
        rule = {**data.draw(st.sampled_from(FORMATS)), "tokens": data.draw(TOKENS), **data.draw(TRANSFORMS)}
        rules.append({**rule, "tensors": data.draw(st.sampled_from(["both", "both", "keys", "values"]))})
        if data.draw(st.booleans()):
            rules[-1]["layers"] = data.draw(st.sampled_from([[0], [1, 2], [0, 2]]))
    chunk = data.draw(st.sampled_from([None, 1, 7, 16, 40]))
    fit = data.draw(st.sampled_from(["prompt", "first_chunk"]))
    try:
        return parse_lane({"label": "x", "rules": rules, "prefill": "full" if chunk is None else f"{chunk} raw {fit}"})
    except SpecError as error:
        assert "\n" not in str(error)
        return None


def drawn_turns(data: st.DataObject) -> list[tuple[list[int], bool]]:
    lengths = data.draw(st.lists(st.integers(1, 30), max_size=3))
    return [(prompt_ids(data.draw(st.integers(45, 60)), 1), False)] + [
        (prompt_ids(length, at), at % 2 == 0) for at, length in enumerate([*lengths, *([5] * (len(lengths) % 2))], 2)
    ]


@pytest.mark.long("programs", sample=0)
@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.data())
def test_any_lane_reads_any_script_as_a_loop_over_its_store_does(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(MODELS))
    model = tiny(name) if name in {**CONFIGS, **SCALED} else tiny_of(name)
    lane = drawn_lane(data)
    assume(lane is not None)
    assert lane is not None
    script, follow = Script.of_turns(drawn_turns(data)), prompt_ids(6, 9)
    begun = script.segments[0].end if lane.chunks is None else min(script.segments[0].end, lane.chunks.chunk)
    prefill = SharedPrefill(
        model, script.ids, range(begun, len(script.ids)), [segment.end for segment in script.segments]
    )
    list(prefill.run())
    decode = Decode(model, prefill, ComparisonSpec(prompt="-", max_new_tokens=6, lanes=(lane,)), [lane])
    decode.script, decode.follow, decode.total = script, follow, len(follow)
    found = []
    for _ in (*decode.encode(), *decode.fill()):
        pass
    state = decode.states[0]
    assert state.error is None
    for _ in decode.steps(lambda reference, rows, targets: found.append(rows[0]), None, lambda rows: None):
        pass
    logits = torch.cat(found)
    read = expected(model, prefill, lane, script, follow)
    wanted = model.head(read[None])[0]
    if state.prompt_hidden is not None and len(script.ids) > begun:
        logits = torch.cat([model.head(state.prompt_hidden[None])[0], logits])
    wanted = wanted[-len(logits) :]
    apart = (logits - wanted).abs()  # what differs in its last digits may be rounded to another code
    assert float(apart.median()) < 2e-3 and float(apart.max()) < 0.3
