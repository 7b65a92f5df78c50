"""From a finished run to its record: ids, metrics, arrays, flags."""

import hashlib
import json
import math
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from kvq_core.analysis.verdict import MIN_SCORED
from kvq_core.engine.decode import LaneState
from kvq_core.methods import ModelShape
from kvq_core.metrics.fidelity import Fidelity
from kvq_core.metrics.rate import BITS, reference_curve
from kvq_core.metrics.stored_bytes import host_note, measure
from kvq_core.models import LoadedModel
from kvq_core.models.text import Pieces, alone
from kvq_core.pipeline.conditions import capture_info, environment, stress_record, timing
from kvq_core.pipeline.lane_metrics import lane_metrics
from kvq_core.pipeline.prompt_scores import prefill_note
from kvq_core.pipeline.state import Run
from kvq_core.record.fields import (
    RESULTS_VERSION,
    LaneRecord,
    Record,
    Reference,
    RuleRecord,
    Timing,
)
from kvq_core.spec import ComparisonSpec, Lane, Rule

OF_CHOSEN_KEYS = (
    "attention and its outputs are those of the keys this lane reads; its attention KL is KL(lane || reference), for a "
    "key that is left out makes the other infinite, and the bound of the output error does not apply"
)


def run_id(model: LoadedModel, spec: ComparisonSpec, ids: list[int]) -> str:
    """16 hex characters over everything that decides the result."""
    parts = {
        "spec": spec.canonical(),
        "prompt": ids,
        "model": model.model_hash,
        "dtype": str(model.dtype),
        "device": model.device.type,
        "results_version": RESULTS_VERSION,
    }
    data = [lane.data_hash(model.ref) for lane in spec.lanes]
    if any(data):  # learned codebooks, one entry a lane
        parts["data"] = data
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def assemble(run: Run) -> tuple[Record, dict[str, Tensor]]:
    """The record and its arrays, named as record.ARRAYS lists them."""
    arrays = _run_arrays(run)
    told = []
    names = [*(f"lane/{index}" for index in range(len(run.spec.lanes))), "lane/noise", "lane/kernel"]
    for name, state in zip(names, run.decode.states, strict=False):
        at = run.running.index(state) if state in run.running else None
        told.append(_lane(run, state, at))
        if at is not None and told[-1].status == "done":
            arrays.update({f"{name}/{key}": value for key, value in _lane_arrays(run, state, at).items()})
    lanes, floors = told[: len(run.spec.lanes)], told[len(run.spec.lanes) :]
    reference = _reference(run)
    record = Record(
        id=run.id,
        results_version=RESULTS_VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        spec=run.spec.model_dump(mode="json"),
        environment=environment(run.model, run.spec),
        reference=reference,
        noise_floor=floors[0],
        kernel_floor=floors[1] if len(floors) > 1 else None,
        lanes=lanes,
        capture=capture_info(run),
        timing=timing(run),
        vocabulary=_vocabulary(run, [reference, *lanes]),
        stress=stress_record(run),
    )
    return record, {name: tensor.contiguous() for name, tensor in arrays.items()}


def _reference(run: Run) -> Reference:
    tokenizer = run.model.tokenizer
    ids = run.decode.token_ids
    pieces = Pieces(tokenizer).extend(ids)
    nll = run.fidelity.column("reference/nll")
    return Reference(
        text="".join(pieces),
        token_ids=ids,
        tokens=pieces,
        prompt_token_ids=run.ids,
        prompt_tokens=tokenizer.convert_ids_to_tokens(run.ids),
        finish=run.decode.finish or "length",
        ppl=math.exp(nll.double().mean()) if len(nll) else None,
    )


def _lane(run: Run, state: LaneState, at: int | None) -> LaneRecord:
    lane: Lane = state.lane
    record = LaneRecord(
        label=lane.label,
        title=lane.title,
        summary=lane.summary,
        prefill=lane.model_dump(mode="json")["prefill"],
        **_stored_as(lane, run.model.shape),
        status="failed" if state.error else "done",
        error=state.error,
        token_ids=state.token_ids,
        finish=state.finish,
    )
    record.tokens = Pieces(run.model.tokenizer).extend(state.token_ids)
    record.text = "".join(record.tokens)
    if at is None or state.error or state.cache is None:
        return record
    record.metrics = lane_metrics(run, state, at)
    record.memory = measure(state.cache, run.model.shape)
    chosen = OF_CHOSEN_KEYS if run.captures and state.cache.selects else None
    read = prefill_note(lane, run.script)
    record.notes = [*state.cache.notes, *filter(None, [read, host_note(record.memory), chosen])]
    record.timing = Timing(encode_prompt_s=state.encode_prompt_s, encode_decode_s=state.encode_decode_s)
    asked = {layer for assigned in lane.plan(run.model.shape) for layer in assigned.layers}
    record.flags = _flags(run.fidelity, record, at, lane.quantizes, len(asked))
    return record


def _stored_as(lane: Lane, shape: ModelShape) -> dict[str, Any]:
    """The rules of a lane, and what its record says beside them: of one rule all that the rule does, of several what
    they quantize together."""
    rules = [_rule(rule) for rule in lane.every_rule]
    if len(rules) == 1:
        return {**rules[0].model_dump(exclude={"title", "summary", "tokens"}), "rules": rules}
    plan = lane.plan(shape)
    layers = sorted({layer for assigned in plan for layer in assigned.layers})
    tensors = {assigned.tensor for assigned in plan}
    return {
        "method": None,
        "knobs": None,
        "tensors": next(iter(tensors)) if len(tensors) == 1 else "both",
        "layers": "all" if len(layers) == shape.layers else layers,
        "sink_tokens": None,
        "recent_tokens": None,
        "rules": rules,
    }


def _rule(rule: Rule) -> RuleRecord:
    method = rule.build()
    return RuleRecord(
        method=rule.method,
        title=method.title,
        summary=method.summary(),
        knobs=method.model_dump(mode="json"),
        tensors=rule.tensors,
        layers=rule.layers if isinstance(rule.layers, str) else list(rule.layers),
        tokens=rule.tokens,
        sink_tokens=rule.sink_tokens,
        recent_tokens=rule.recent_tokens,
        center=rule.center,
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


def _lane_arrays(run: Run, state: LaneState, at: int) -> dict[str, Tensor]:
    assert state.cache is not None
    fidelity = run.fidelity
    names = ("kld", "nll", "delta_p", "same_top", "acceptance", "topk_ids", "topk_probs")
    arrays = {name: fidelity.column(name, at) for name in names}
    for kind in ("key", "value"):
        arrays[f"{kind}_bits"] = _bit_map(run, state, kind)
    if run.prompt is not None:
        arrays |= run.prompt.arrays(state, "prompt")
    if run.turns is not None:
        arrays |= run.turns.arrays(state, "turns")
    if run.captures is not None and state.kernel is None:
        arrays |= run.captures.lane_arrays(at)
    return arrays


def _bit_map(run: Run, state: LaneState, kind: str) -> Tensor:
    """(layers or 1, kv_heads or 1, tokens, channel groups) float16, the parts of all layers put together."""
    assert state.cache is not None
    maps = [(part, part.stream.bits().cpu()) for part in state.cache.parts if part.kind == kind]
    if len(maps) == 1:
        return maps[0][1].half()
    shape = [max(m.shape[d] for _, m in maps) for d in (1, 2, 3)]
    whole = torch.empty(run.model.shape.layers, *shape, dtype=torch.float16)
    for part, bits in maps:
        layers = [run.prefill.groups[part.group].layers[i] for i in part.layers.tolist()]
        whole[layers] = bits.half().expand(len(layers), *shape)
    return whole


def _run_arrays(run: Run) -> dict[str, Tensor]:
    names = ("nll", "margin", "topk_ids", "topk_probs")
    arrays = {f"reference/{name}": run.fidelity.column(f"reference/{name}") for name in names}
    if run.prompt is not None:
        arrays |= run.prompt.run_arrays("prompt")
    if run.turns is not None:
        arrays |= run.turns.run_arrays("turns")
    if run.captures is None:
        return arrays
    arrays |= run.captures.run_arrays()
    arrays["gaussian/bits"] = torch.tensor(BITS)
    for kind, source in (("key", "key_pre"), ("value", "value")):  # a rotation leaves the size of an error as it is
        energies = arrays[f"centred/{source}"].square().sum((1, 2)) + arrays[f"mean/{source}"].square().sum(1)
        arrays[f"gaussian/{kind}_error"] = reference_curve(arrays[f"gaussian/{source}"], energies / len(run.ids), BITS)
    return arrays


def _vocabulary(run: Run, rows: list[Reference | LaneRecord]) -> dict[int, str]:
    """So that a stored run can be read without its model's tokenizer: what the top-k arrays name, and of the answers
    what is no text by itself."""
    columns = [run.fidelity.column("reference/topk_ids")]
    columns += [run.fidelity.column("topk_ids", at) for at in range(len(run.running))]
    named = torch.cat([column.flatten().long() for column in columns]).unique().tolist()
    parts = {id for row in rows for id, piece in zip(row.token_ids, row.tokens, strict=True) if not piece}
    return {id: alone(run.model.tokenizer, id) for id in sorted({*named, *parts})}
