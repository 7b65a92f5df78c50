"""From a finished batch to the records and arrays of its lanes: metrics, memory, flags."""

from typing import Any

import torch
from torch import Tensor

from kvq_core.analysis.verdict import MIN_SCORED
from kvq_core.engine.fidelity import Fidelity
from kvq_core.engine.lane_state import LaneState
from kvq_core.engine.stored_bytes import host_note, kept_note, measure, whole_note
from kvq_core.methods import ModelShape
from kvq_core.models.text import Pieces
from kvq_core.pipeline.batch import Batch
from kvq_core.pipeline.lane_metrics import lane_metrics
from kvq_core.pipeline.prompt_scores import prefill_note
from kvq_core.record.fields import LaneRecord, RuleRecord, Timing
from kvq_core.spec import READ_OPTIONS, Lane, Rule

OF_CHOSEN_KEYS = (
    "attention and its outputs are those of the keys this lane reads; its attention KL is KL(lane || reference), for a "
    "key that is left out makes the other infinite, and the bound of the output error does not apply"
)

LaneResult = tuple[LaneRecord, dict[str, Tensor]]


def lanes_of(batch: Batch) -> list[LaneResult]:
    """Each of its lanes, the noise floor last where it is the first batch: the record, and arrays where it is done."""
    found = []
    for state in batch.decode.states:
        at = batch.running.index(state) if state in batch.running else None
        told = _record(batch, state, at)
        arrays = _lane_arrays(batch, state, at) if at is not None and told.status == "done" else {}
        found.append((told, arrays))
    return found


def _record(batch: Batch, state: LaneState, at: int | None) -> LaneRecord:
    lane: Lane = state.lane
    record = LaneRecord(
        label=lane.label,
        title=lane.title,
        summary=lane.summary,
        **lane.model_dump(mode="json", include={*READ_OPTIONS}),
        **_stored_as(lane, batch.model.shape),
        status="failed" if state.error else "done",
        error=state.error,
        token_ids=state.token_ids,
        finish=state.finish,
    )
    record.tokens = Pieces(batch.model.tokenizer).extend(state.token_ids)
    record.text = "".join(record.tokens)
    if at is None or state.error or state.cache is None:
        return record
    record.metrics, shape = lane_metrics(batch, state, at), batch.model.shape
    record.memory = measure(state.cache, shape)
    chosen = OF_CHOSEN_KEYS if batch.captures and state.cache.selects else None
    read = prefill_note(lane, batch.script)
    unseen = batch.captures.remarks.get(at, ()) if batch.captures and state.kernel is None else ()
    sizes = [whole_note(record.memory), host_note(record.memory), kept_note(state.cache, record.memory, shape)]
    said = [read, *sizes, chosen, *unseen]
    record.notes = [*state.cache.notes, *filter(None, said)]
    record.timing = Timing(encode_prompt_s=state.encode_prompt_s, encode_decode_s=state.encode_decode_s)
    asked = {layer for assigned in lane.plan(shape) for layer in assigned.layers}
    record.flags = _flags(batch.fidelity, record, at, lane.quantizes, len(asked))
    return record


def _stored_as(lane: Lane, shape: ModelShape) -> dict[str, Any]:
    """The rules of a lane, and what its record says beside them: of one rule all that the rule does, of several what
    they quantize together."""
    rules = [rule_record(rule) for rule in lane.every_rule]
    if len(rules) == 1:
        return {**rules[0].model_dump(exclude={"title", "summary", "tokens"}), "rules": rules}
    plan = lane.plan(shape)
    layers = sorted({layer for assigned in plan for layer in assigned.layers})
    tensors = {assigned.tensor for assigned in plan}
    return {
        "method": None,
        "knobs": None,
        "tensors": next(iter(tensors)) if len(tensors) == 1 else "both",
        "layers": "all" if layers == list(shape.full) else layers,
        "sliding": bool(set(layers) & set(shape.windowed)),
        "sink_tokens": None,
        "recent_tokens": None,
        "rules": rules,
    }


def rule_record(rule: Rule) -> RuleRecord:
    """A rule with all its knobs, as a record says it."""
    method = rule.build()
    return RuleRecord(
        title=method.title,
        summary=method.summary(),
        **rule.model_dump(mode="json", exclude={"knobs"}),
        knobs=method.model_dump(mode="json"),
    )


def _flags(fidelity: Fidelity, record: LaneRecord, at: int, quantizes: bool, layers: int) -> list[str]:
    """What a reader must know before believing the numbers."""
    metrics, flags = record.metrics, []
    assert metrics is not None
    if fidelity.not_finite[at]:
        flags.append("nan")
    if quantizes and (not metrics.tokens_quantized or metrics.kld_max == 0):
        flags.append("never_engaged")
    elif quantizes and metrics.layers_quantized < layers:
        flags.append("partly_engaged")
    if metrics.n_scored < MIN_SCORED:
        flags.append("too_few_positions")
    return flags


def _lane_arrays(batch: Batch, state: LaneState, at: int) -> dict[str, Tensor]:
    assert state.cache is not None
    fidelity = batch.fidelity
    names = ("kld", "nll", "delta_p", "same_top", "acceptance", "topk_ids", "topk_probs")
    arrays = {name: fidelity.column(name, at) for name in names}
    for kind in ("key", "value"):
        arrays[f"{kind}_bits"] = _bit_map(batch, state, kind)
    if batch.prompt is not None:
        arrays |= batch.prompt.arrays(state, "prompt")
    if batch.turns is not None:
        arrays |= batch.turns.arrays(state, "turns")
    if batch.captures is not None and state.kernel is None:
        arrays |= batch.captures.lane_arrays(at)
    return arrays


def _bit_map(batch: Batch, state: LaneState, kind: str) -> Tensor:
    """(layers or 1, kv_heads or 1, tokens, channel groups), the parts of all layers put together; 0 of layers without
    keys. Exact in float32 where that takes no more than Method.usage_bytes counts, else rounded to float16."""
    assert state.cache is not None
    count = batch.model.shape.layers
    maps = [(part, part.stream.bits().cpu()) for part in state.cache.parts if part.kind == kind]
    if len(maps) == 1 and maps[0][0].layers.numel() == count:
        bits = maps[0][1]
        return bits.float() if 2 * bits.numel() <= count * bits.shape[2] else bits.half()
    shape = [max(m.shape[d] for _, m in maps) for d in (1, 2, 3)]
    whole = torch.zeros(count, *shape, dtype=torch.float16)
    for part, bits in maps:
        layers = [batch.prefill.groups[part.group].layers[i] for i in part.layers.tolist()]
        # of a size that does not repeat, a layer may have fewer: heads of another shape
        ends = [most if size == 1 else size for size, most in zip(bits.shape[1:], shape, strict=True)]
        inner = whole[:, : ends[0], : ends[1], : ends[2]]
        inner[layers] = bits.half().expand(len(layers), *inner.shape[1:])
    return whole
