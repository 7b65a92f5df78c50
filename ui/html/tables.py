"""The scorecard and the llama-perplexity block as rows; CSV for spreadsheets."""

import csv
import io
from dataclasses import dataclass
from typing import Any

from kvq_core.analysis.floors import above_floor, floors, lane_of
from kvq_core.analysis.scored import P99, At, pooled, tail
from kvq_core.analysis.verdict import verdict
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import LaneRecord, Record
from ui.html.escape import cell_safe
from ui.html.numbers import ABSENT, bits, percent, seconds, significant


@dataclass(frozen=True)
class Column:
    """``shown`` formats for the page; the raw value sorts and goes into the CSV."""

    title: str
    name: str
    shown: Any = significant


COLUMNS = (
    Column("lane", "lane", str),
    Column("verdict", "verdict", str),
    Column("K bits", "key_bits", bits),
    Column("V bits", "value_bits", bits),
    Column("size", "kv_ratio", percent),
    Column("KLD mean", "kld_mean"),
    Column("median", "kld_median"),
    Column("p99", "kld_p99"),
    Column("max", "kld_max"),
    Column("above floor", "above_floor", percent),
    Column("same top", "same_top", lambda v: percent(v, 1)),
    Column("drafts kept", "acceptance", lambda v: percent(v, 1)),
    Column("tokens a step", "tokens_a_step", lambda v: ABSENT if v is None else f"{v:.2f}"),
    Column("RMS Δp", "rms_dp", lambda v: ABSENT if v is None else f"{significant(v, 2)} %"),
    Column("PPL ratio", "ppl_ratio", lambda v: ABSENT if v is None else f"{v:.3f}"),
    Column("flips", "flips", lambda v: ABSENT if v is None else f"{v:.0f}"),
    Column("near ties", "near_tie_flips", lambda v: ABSENT if v is None else f"{v:.0f}"),
    Column("diverges at", "first_divergence", lambda v: ABSENT if v is None else f"{v:.0f}"),
    Column("matched", "matched_prefix", lambda v: ABSENT if v is None else f"{v:.0f}"),
    Column("key error", "key_rmse", lambda v: percent(v, 1)),
    Column("value error", "value_rmse", lambda v: percent(v, 1)),
    Column("output error", "output_error"),
    Column("its bound", "output_bound"),
    Column("encode", "encode_s", seconds),
    Column("p99.9", "kld_p999"),
    Column("p99.9 from", "kld_p999_low"),
    Column("p99.9 to", "kld_p999_high"),
    Column("size of all", "whole_ratio", percent),
)


def scorecard(record: Record, arrays: Arrays) -> list[dict[str, Any]]:
    """A row a lane, floors first, values raw; what a lane lacks is None."""
    return [_row(record, arrays, at) for at in (*floors(record), *range(len(record.lanes)))]


def _row(record: Record, arrays: Arrays, at: At) -> dict[str, Any]:
    lane = lane_of(record, at)
    found: dict[str, Any] = dict.fromkeys(column.name for column in COLUMNS)
    declared = " (bits declared)" if lane.memory and lane.memory.declared else ""
    found["lane"] = f"{lane.label}{declared}" if lane.status == "done" else f"{lane.label} (failed)"
    for part in (lane.metrics, lane.memory):
        if part is not None:
            found |= {name: value for name, value in part.model_dump().items() if name in found}
    found["verdict"] = verdict(record, arrays, at).word if isinstance(at, int) else ""
    found["above_floor"] = above_floor(record, arrays, at)
    high = tail(pooled(arrays, at, "kld"))
    if high is not None and high.rank > P99:
        found |= {"kld_p999": high.value, "kld_p999_low": high.low, "kld_p999_high": high.high}
    if lane.metrics and lane.metrics.flip_rate is not None:
        found["same_top"] = 1 - lane.metrics.flip_rate
    if lane.timing:
        found["encode_s"] = lane.timing.encode_prompt_s + lane.timing.encode_decode_s
    return found


def to_csv(rows: list[dict[str, Any]]) -> str:
    """Raw values, one header line."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [column.name for column in COLUMNS])
    writer.writeheader()
    for row in rows:
        writer.writerow({name: cell_safe(value) for name, value in row.items()})
    return out.getvalue()


def perplexity_rows(record: Record) -> tuple[list[str], list[list[str]]]:
    """llama-perplexity's report: a line a statistic in its own order, a column a lane."""
    lanes = [
        lane for lane in (*floors(record).values(), *record.lanes) if lane.metrics and lane.metrics.perplexity_block
    ]
    if not lanes:
        return [], []
    names = list(lanes[0].metrics.perplexity_block) if lanes[0].metrics else []
    rows = [[name, *(_interval(lane, name) for lane in lanes)] for name in names]
    return ["", *(lane.label for lane in lanes)], rows


def _interval(lane: LaneRecord, name: str) -> str:
    found = lane.metrics.perplexity_block.get(name) if lane.metrics else None
    if found is None:
        return ABSENT
    text = significant(found.value, 4)
    return text if found.se is None else f"{text} ± {significant(found.se, 2)}"
