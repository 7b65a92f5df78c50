"""From a finished run to its record and its id."""

import hashlib
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from kvq_core.engine.rate import BITS, reference_curve
from kvq_core.models import LoadedModel, identity_of
from kvq_core.models.text import Pieces, lone_token_text
from kvq_core.pipeline.conditions import capture_info, environment, stress_record, timing
from kvq_core.pipeline.state import Run
from kvq_core.record.fields import RESULTS_VERSION, LaneRecord, Record, Reference
from kvq_core.spec import ComparisonSpec, Lane


def run_id(model: LoadedModel, spec: ComparisonSpec, ids: list[int]) -> str:
    """16 hex characters over everything that decides the result."""
    return id_of(spec.canonical(), ids, place_of(model, spec.lanes, spec.reference))


def place_of(model: LoadedModel, lanes: Sequence[Lane], reference: str | None = None) -> dict[str, Any]:
    """What of a run's id is neither the spec nor the prompt: model, device, versions, learned data, and the file that
    lanes are scored against where it is another."""
    parts = {
        "model": model.model_hash,
        "dtype": str(model.dtype),
        "device": model.device.type,
        "results_version": RESULTS_VERSION,
    }
    if reference is not None:
        parts["reference"] = identity_of(reference)["model_hash"]
    data = [lane.data_hash(model.ref) for lane in lanes]
    return {**parts, "data": data} if any(data) else parts  # learned codebooks, one entry a lane


def id_of(canonical: str, ids: list[int], place: dict[str, Any]) -> str:
    """``run_id`` of a spec's canonical JSON."""
    parts = {"spec": canonical, "prompt": ids, **place}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def assemble(run: Run) -> tuple[Record, dict[str, Tensor]]:
    """The record and its arrays, named as record.ARRAYS lists them."""
    arrays = _run_arrays(run)
    lanes, floors = run.lanes()
    named = [*enumerate(lanes), *zip(("noise", "kernel"), floors, strict=False)]
    for name, (_, own) in named:
        arrays |= {f"lane/{name}/{key}": values for key, values in own.items()}
    records = [record for record, _ in lanes]
    reference = _reference(run)
    record = Record(
        id=run.id,
        results_version=RESULTS_VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        spec=run.spec.model_dump(mode="json"),
        environment=environment(run),
        reference=reference,
        noise_floor=floors[0][0] if run.parent is None else run.parent.noise_floor,
        kernel_floor=floors[1][0] if len(floors) > 1 else None,
        lanes=records,
        capture=capture_info(run),
        timing=timing(run),
        vocabulary=_vocabulary(run, [reference, *records]),
        stress=stress_record(run),
        parent=None if run.parent is None else run.parent.parent or run.parent.id,
    )
    return record, {name: tensor.contiguous() for name, tensor in arrays.items()}


def _reference(run: Run) -> Reference:
    tokenizer = run.model.tokenizer
    ids = run.first.decode.token_ids if run.answer is None else run.answer.token_ids
    pieces = Pieces(tokenizer).extend(ids)
    nll = run.first.fidelity.column("reference/nll")
    return Reference(
        text="".join(pieces),
        token_ids=ids,
        tokens=pieces,
        prompt_token_ids=run.ids,
        prompt_tokens=tokenizer.convert_ids_to_tokens(run.ids),
        finish=run.first.decode.finish or "length",
        ppl=math.exp(nll.double().mean()) if len(nll) else None,
    )


def _run_arrays(run: Run) -> dict[str, Tensor]:
    names = ("nll", "margin", "topk_ids", "topk_probs")
    arrays = {f"reference/{name}": run.first.fidelity.column(f"reference/{name}") for name in names}
    for kind in ("prompt", "turns"):  # of the first batch that has lanes to score there
        scores = next(filter(None, (getattr(batch, kind) for batch in run.batches)), None)
        arrays |= {} if scores is None else scores.run_arrays(kind)
    if run.first.captures is None:
        return arrays
    arrays |= run.first.captures.run_arrays()
    arrays["gaussian/bits"] = torch.tensor(BITS)
    for kind, source in (("key", "key_pre"), ("value", "value")):  # a rotation leaves the size of an error as it is
        energies = arrays[f"centred/{source}"].square().sum((1, 2)) + arrays[f"mean/{source}"].square().sum(1)
        arrays[f"gaussian/{kind}_error"] = reference_curve(arrays[f"gaussian/{source}"], energies / len(run.ids), BITS)
    return arrays


def _vocabulary(run: Run, rows: list[Reference | LaneRecord]) -> dict[int, str]:
    """So that a stored run can be read without its model's tokenizer: what the top-k arrays name, and of the answers
    what is no text by itself."""
    columns = [run.first.fidelity.column("reference/topk_ids")]
    columns += [batch.fidelity.column("topk_ids", at) for batch in run.batches for at in range(len(batch.running))]
    named = torch.cat([column.flatten().long() for column in columns]).unique().tolist()
    parts = {id for row in rows for id, piece in zip(row.token_ids, row.tokens, strict=True) if not piece}
    return {id: lone_token_text(run.model.tokenizer, id) for id in sorted({*named, *parts})}
