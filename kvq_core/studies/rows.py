"""A study's results as a table: a row is model x prompt x lane, which is what its Parquet file holds."""

import io
import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvq_core.analysis.free_text import free_text
from kvq_core.analysis.verdict import Figures, mean_interval, rule, tier, verdict
from kvq_core.record.arrays import Arrays, array
from kvq_core.record.beside import names, read_beside, write_beside
from kvq_core.record.fields import Record
from kvq_core.record.store import Store
from kvq_core.spec import tool_name
from kvq_core.studies.cells import Cell
from kvq_core.studies.task_suites import judge

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Row = dict[str, Any]
# Columns with their Arrow types. Lists have an entry for each scored position of the answer; units as in
# record.arrays.
COLUMNS = {
    "run": "string",  # id of the run in the store
    "model": "string",
    "prompt": "string",  # id of the prompt
    "group": "string",
    "lane": "string",
    "at": "int32",  # number of the lane, from 0
    "error": "string",  # of a lane that failed
    "prompt_tokens": "int32",
    "scored": "int32",  # positions
    "kld_mean": "float64",  # nats
    "kld_p99": "float64",
    "kld_max": "float64",
    "flips": "int32",
    "near_tie_flips": "int32",
    "acceptance": "float64",
    "tokens_a_step": "float64",
    "tier": "string",  # of the prompt's run: one or, where too close to call, several; null where it has no verdict
    "tier_reason": "string",  # the figure that decides it: KLD, flips, tail or own text
    "repeats": "bool",  # whether the lane's own text repeats itself where the reference's does not
    "key_bits": "float64",  # an element
    "value_bits": "float64",
    "cache_bytes": "int64",
    "weights_bytes": "int64",  # of the model's file; null where they are not known
    "kv_ratio": "float64",  # of an fp16 cache, with what the method keeps in host memory
    "storage_floor": "float64",  # mean KLD of an fp16 cache, nats; against another file's logits: of the weights
    "kernel_floor": "float64",  # of another kernel
    "correct": "bool",  # of a task: whether the lane's own text is right
    "reference_correct": "bool",
    "seconds": "float64",  # of the whole run, all its lanes
    "kld": "list<float>",
    "same_top": "list<bool>",
    "top_prob": "list<float>",  # the reference's largest probability
    "structural": "list<bool>",  # whether the followed token is one of structure
    "prompt_at": "list<int32>",  # positions of the prompt that are scored, where it is read through the lane's cache
    "prompt_kld": "list<float>",
}
_STRUCTURE = re.compile(r"[\s{}\[\]()<>\"'`:,;0-9]*[{}\[\]()<>\"'`:,;0-9][\s{}\[\]()<>\"'`:,;0-9]*")
_LATER = ("tier_reason", "repeats")  # columns that rows of older studies lack
_FOLDER, _ROWS = "studies/{}", "rows"


def rows_of(cell: Cell, record: Record, arrays: Arrays) -> list[Row]:
    """A finished run's rows, a lane each."""
    floor, kernel = record.noise_floor.metrics, record.kernel_floor and record.kernel_floor.metrics
    shared = {
        "run": cell.id,
        "model": cell.title,
        "prompt": cell.prompt.id,
        "group": cell.prompt.group,
        "prompt_tokens": len(record.reference.prompt_token_ids),
        "storage_floor": floor and floor.kld_mean,
        "kernel_floor": kernel and kernel.kld_mean,
        "reference_correct": _judged(cell, record.reference.text),
        "seconds": record.timing.total_s,
        "weights_bytes": record.environment.weights_bytes,
        "top_prob": _top_probs(arrays),
        "structural": _structural(cell, record, len(arrays.get("reference/nll", ()))),
    }
    return [{**shared, **_lane(cell, record, at, arrays)} for at in range(len(record.lanes))]


def _lane(cell: Cell, record: Record, at: int, arrays: Arrays) -> Row:
    lane = record.lanes[at]
    row: Row = {"lane": lane.label, "at": at, "error": lane.error}
    if lane.memory is not None:
        row |= {"key_bits": lane.memory.key_bits, "value_bits": lane.memory.value_bits}
        row["kv_ratio"] = lane.memory.held_ratio
        row["cache_bytes"] = sum(lane.memory.bytes_by_part.values())
    if (through := array(arrays, f"lane/{at}/prompt_kld")) is not None:
        row |= {"prompt_at": array(arrays, "prompt/positions"), "prompt_kld": through}
    if lane.status == "failed" or lane.metrics is None:
        return row
    row["correct"] = _judged(cell, lane.text)
    own, m = array(arrays, f"lane/{at}/kld"), lane.metrics
    same = array(arrays, f"lane/{at}/same_top")
    if m.kld_mean is None or own is None or same is None:
        return row
    row |= {name: getattr(m, name) for name in ("kld_mean", "kld_p99", "kld_max", "acceptance", "tokens_a_step")}
    row |= {name: getattr(m, name) for name in ("flips", "near_tie_flips")}
    row |= {"scored": m.n_scored, "kld": own, "same_top": same > 0}
    if (placed := verdict(record, arrays, at).placed) is not None:
        row |= {"tier": placed.word, "tier_reason": placed.reason}
    return {**row, "repeats": free_text(record, at).repeats_from is not None}


def _judged(cell: Cell, text: str) -> bool | None:
    asked = cell.prompt
    return None if asked.verifier is None else judge(asked.verifier, asked.answer, text)


def _top_probs(arrays: Arrays) -> np.ndarray | None:
    probs = array(arrays, "reference/topk_probs")
    return None if probs is None or not len(probs) else probs[:, 0]


def _structural(cell: Cell, record: Record, scored: int) -> np.ndarray:
    """Of every followed token whether it is braces, quotes, digits and what goes with them, or of a tool's name."""
    tokens = record.reference.tokens
    names = [re.escape(tool_name(tool)) for tool in cell.prompt.tools]
    named = [found.span() for found in re.finditer("|".join(names), record.reference.text)] if names else []
    ends = np.cumsum([len(token) for token in tokens])
    inside = [any(a < end and end - len(token) < b for a, b in named) for token, end in zip(tokens, ends, strict=True)]
    marks = [bool(_STRUCTURE.fullmatch(token)) or hit for token, hit in zip(tokens, inside, strict=True)]
    return np.array(marks[len(marks) - scored :], dtype=bool)  # the first token is the prompt's own prediction


def schema() -> "pa.Schema":
    """The columns, and as metadata the rule that the tiers were told by."""
    import pyarrow as pa

    plain = {"string": pa.string(), "bool": pa.bool_(), "int32": pa.int32(), "int64": pa.int64()}
    items = {"float": pa.float32(), "bool": pa.bool_(), "int32": pa.int32()}
    lists = {f"list<{name}>": pa.list_(kind) for name, kind in items.items()}
    kinds = {**plain, **lists, "float64": pa.float64()}
    return pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()], {"tiers": json.dumps(rule())})


def table(rows: Sequence[Row]) -> "pa.Table":
    import pyarrow as pa

    return pa.Table.from_pylist([{name: row.get(name) for name in COLUMNS} for row in rows], schema=schema())


def parquet(rows: Sequence[Row]) -> bytes:
    """The rows as the bytes of a Parquet file."""
    import pyarrow.parquet as pq

    held = io.BytesIO()
    pq.write_table(table(rows), held, compression="zstd")
    return held.getvalue()


def frame(rows: Sequence[Row]) -> "pd.DataFrame":
    """The rows for pandas, which are a file's."""
    found: pd.DataFrame = table(rows).to_pandas()
    return found


def keep_rows(store: Store, study: str, rows: Iterable[Row], part: str = "") -> None:
    """Keep a study's rows in the store, so that opening it need not read every run again; those of a ``part`` of it
    apart, so that parts that are computed at once keep theirs beside one another. Raises StoreError."""
    write_beside(store, "/".join([_FOLDER.format(study), _ROWS + part]), parquet(list(rows)))


def read_rows(store: Store, study: str) -> dict[tuple[str, str], list[Row]]:
    """The rows that were kept of it and of its parts, by run and prompt; none where there are none of this version.
    Raises StoreError."""
    found: dict[tuple[str, str], list[Row]] = {}
    folder = _FOLDER.format(study)
    for name in names(store, folder):
        if name.startswith(f"{folder}/{_ROWS}"):
            found |= _read(read_beside(store, name))
    return found


def _read(data: bytes | None) -> dict[tuple[str, str], list[Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: dict[tuple[str, str], list[Row]] = {}
    held = None if data is None else pq.read_table(pa.BufferReader(data))
    if held is None or not {*COLUMNS} - {*_LATER} <= {*held.schema.names}:
        return found
    if held.schema != pa.schema([field for field in schema() if field.name in held.schema.names]):
        return found
    today = held.schema.equals(schema(), check_metadata=True)
    for row in held.to_pylist():
        whole = row if today else {**dict.fromkeys(COLUMNS), **row, **_placed(row)}
        found.setdefault((row["run"], row["prompt"]), []).append(whole)
    return found


def _placed(row: Row) -> Row:
    """The tier, by today's rule, of a row that was kept under another one, which may not know of the own text."""
    if row["kld"] is None:
        return {"tier": None, "tier_reason": None}
    kld, apart = np.asarray(row["kld"], dtype=np.float64), max(0, row["flips"] - row["near_tie_flips"])
    p99, repeats = float(np.percentile(kld, 99)), float(row.get("repeats") or False)
    found = tier(Figures(*mean_interval(kld.tobytes()), p99, apart, len(kld), repeats)) if len(kld) else None
    return {"tier": found and found.word, "tier_reason": found and found.reason}


def knows_text(rows: Sequence[Row]) -> bool:
    """Whether rows say of each lane if its own text repeats itself, which those of older studies do not."""
    return all(row.get("repeats") is not None for row in rows if row.get("kld_mean") is not None)
