"""One lane on token ids, with its cache laid open: what a method's checks look at."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvq_core.codecs.blocks import DeclaredBlock
from kvq_core.codecs.codec import Codec
from kvq_core.codecs.stream import Stream
from kvq_core.engine.cache import LaneCache, Part
from kvq_core.engine.decode import Decode
from kvq_core.engine.lane_state import failure_line
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.models import LoadedModel
from kvq_core.spec import ComparisonSpec, Lane

FAR, FLIPS = 1e-3, 5e-3  # of the largest element; and how many may be further apart
READ = 2e-6  # of a working copy against the store: RoPE in another order


@dataclass
class Trial:
    """A lane that was fed what the reference wrote. ``logits`` (steps, vocabulary) are its own, ``fed`` the tokens it
    read; ``unlike``: the first place where its store does not decode to what attention read."""

    error: str | None = None
    unlike: str | None = None
    fed: list[int] = field(default_factory=list)
    logits: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    cache: LaneCache | None = None

    @property
    def streams(self) -> list[tuple[str, Stream]]:
        """Keys' and values', each with its name."""
        return [(f"{part.kind}s", part.plain) for part in self.cache.parts] if self.cache is not None else []


def trial(model: LoadedModel, lane: Lane, ids: list[int], new: int) -> Trial:
    """Run a lane for ``new`` tokens after a prompt; what it does wrong is in the result, not raised."""
    prefill = SharedPrefill(model, ids)
    for _ in prefill.run():
        pass
    spec = ComparisonSpec(prompt="-", max_new_tokens=new, ignore_eos=True, free_text=False, lanes=(lane,))
    found, rows = Trial(), list[Tensor]()
    decode = Decode(model, prefill, spec, list(spec.lanes))
    state = decode.states[0]
    try:
        for _ in (*decode.encode(), *decode.fill()):
            pass
        if state.error is None:
            for _ in decode.steps(lambda _, lanes, __: rows.append(lanes[0]), None, lambda _: None):
                found.unlike = found.unlike or _unlike(decode)
    except Exception as error:  # whatever a method does wrong
        state.error = failure_line(error)
    found.error, found.cache, found.fed = state.error, state.cache, decode.token_ids[:-1]
    if rows:
        found.logits = torch.cat(rows)
    return found


def _unlike(decode: Decode) -> str | None:
    """Where the lane's store, decoded afresh, is not the working copy."""
    cache = decode.states[0].cache
    if cache is None or decode.states[0].error is not None or decode.finish:
        return None
    decode.rows.catch_up(1, cache)
    for part in cache.parts:
        stored = torch.cat([values for _, values in cache.pieces(part)], -2)
        for i, layer in enumerate(part.layers.tolist()):
            read = decode.rows.working(1, part.group, part.kind, layer)
            if stored[i].shape != read.shape or not torch.allclose(stored[i], read, rtol=0, atol=READ):
                return f"{part.kind}s of layer {layer}"
    return None


def stepwise(model: LoadedModel, lane: Lane, ids: list[int], first: int) -> dict[str, str]:
    """What a lane's cache holds once a prompt has entered whole, against ``first`` tokens of it at once and the others
    one by one, fitted alike: by keys and values, ``same``, ``another``, or why the two need not be one."""
    prefill = SharedPrefill(model, ids)
    for _ in prefill.run():
        pass
    for group in prefill.groups:  # as a window holds them, so that it takes nothing more
        group.keys, group.values = group.keys.half().float(), group.values.half().float()
    rope = model.rope(len(ids))
    whole = LaneCache.of_prompt(lane, prefill.groups, rope, model.ref)
    parts = LaneCache.of_prompt(lane, prefill.groups, rope, model.ref, None, first)
    found = {}
    for one, other in zip(whole.parts, parts.parts, strict=True):
        name = f"{one.kind}s"
        if reason := _by_itself(one):
            found[name] = reason
            continue
        x = prefill.groups[one.group].keys if one.kind == "key" else prefill.groups[one.group].values
        for position in range(first, len(ids)):
            parts.append(other, x[other.layers, :, position : position + 1], position)
            parts.flush(other)
        found[name] = "same" if _same(one.plain.decode(), other.plain.decode()) else "another"
    return found


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two stores read alike, but for the few codes that sums in another order carry over a tie."""
    apart = (one - other).abs() > FAR * one.abs().amax()
    return float(apart.float().mean()) <= FLIPS


def _by_itself(part: Part) -> str | None:
    """Why a part of a cache may hold a prompt in another way than later tokens; None where it may not."""
    stream = part.plain
    codec = getattr(stream.codec, "inner", stream.codec)
    if codec is None or stream.window.step is None:
        return "nothing is stored"
    if stream.window.prompt_only:
        return "later tokens stay in fp16"
    if getattr(stream.window, "whole_prompt", False):
        return "a prompt leaves its window as a whole"
    if stream.window.rewritten or type(codec).extend is not Codec.extend:
        return "tokens are stored anew with those before them"
    if type(codec).encode_prompt is not Codec.encode_prompt:
        return "a prompt is stored in a way of its own"
    return "keys are stored before RoPE" if part.rope is not None else None


def short_claims(found: Trial) -> list[str]:
    """Blocks of a finished trial that claim fewer bits than their tensors take, each in words; declared ones claim what
    they are declared."""
    said = []
    for name, stream in found.streams:
        for block in stream.blocks:
            if isinstance(block, DeclaredBlock) or stream.codec is None:
                continue
            held = 8 * sum(t.numel() * t.element_size() for t in block.tensors.values())
            elements = stream.codec.decode(block).numel()
            claimed, counted = float(stream.codec.bits(block).float().mean()), held / elements
            if claimed < counted * 0.999:
                said.append(f"{name} claim {claimed:.4g} bits an element and take {counted:.4g}")
    return said


def declares(found: Trial) -> bool:
    """Whether any of what a trial stored is declared, not counted."""
    return any(isinstance(block, DeclaredBlock) for _, stream in found.streams for block in stream.blocks)
