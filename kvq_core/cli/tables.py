"""Plain-text views of methods, presets and records, for terminals."""

import inspect
import shutil
import textwrap
from collections.abc import Iterable, Sequence

from kvq_core.analysis.confidence import by_confidence
from kvq_core.analysis.expected import expectation_sentence
from kvq_core.analysis.floors import above_floor, floors, lane_of
from kvq_core.analysis.scored import At, pooled, tail
from kvq_core.analysis.verdict import MIN_SCORED
from kvq_core.analysis.within import LOSSES, fewest
from kvq_core.methods import Knob, Method, knobs, methods, origin_of
from kvq_core.presets import Preset
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from kvq_core.spec import LaneOptions, RuleOptions

_HEADER = (
    "lane",
    "K bits",
    "V bits",
    "size",
    "KLD mean",
    "tail",
    "flips",
    "above floor",
    "drafts kept",
    "PPL ratio",
    "score Δ",
    "key error",
    "diverges",
    "text",
)
_NONE = ["-"] * (len(_HEADER) - 2)


def list_methods() -> str:
    """The methods for people: what each does, and its knobs with default and range; then what any lane may say."""
    options = [*knobs(LaneOptions), *knobs(RuleOptions)]
    told = "\n".join(["Options of a lane, beside its method and knobs:", *map(_knob, options)])
    return "\n\n".join([*(_method(name, cls) for name, cls in methods().items()), told])


def _method(name: str, cls: type[Method]) -> str:
    origin = origin_of(cls)
    whence = f"  ({origin.words})" if origin is not None else ""
    lines = [f"{name} - {cls.title}" + (f"  {cls.paper}" if cls.paper else "") + whence]
    first = inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0]
    lines += textwrap.wrap(" ".join(first.split()), 110, initial_indent="  ", subsequent_indent="  ")
    return "\n".join([*lines, *map(_knob, knobs(cls))])


def _knob(knob: Knob) -> str:
    default = "null" if knob.default is None else knob.default
    return f"    {knob.name:<16} {default!s:<8} {knob.allowed()}: {knob.help}"


def list_presets(found: Iterable[Preset]) -> str:
    """The presets for people: the question each answers, and its lanes."""
    return "\n\n".join(
        f"{preset.name} - {preset.title}\n  {preset.question}\n"
        f"  lanes: {', '.join(lane.label for lane in preset.spec.lanes)}"
        for preset in found
    )


def describe_record(record: Record, arrays: Arrays, losses: Sequence[float] = LOSSES) -> str:
    """A finished run as a table, one line a lane, with what a reader must know about the numbers below it; ``losses``:
    within which each family's fewest bits are told."""
    env = record.environment
    scored = record.noise_floor.metrics.n_scored if record.noise_floor.metrics else 0
    head = f"run {record.id}  {env.model_title}  {env.dtype} on {env.device}  "
    head += f"{len(record.reference.prompt_token_ids)} prompt tokens, {scored} scored positions"
    rows = [_HEADER, ("reference", *_NONE, _plain(record.reference.text))]
    rows += [_row(record, arrays, at) for at in (*floors(record), *range(len(record.lanes)))]
    # too few positions concern the whole run and are said once, below
    said = {lane.label: [f.replace("_", " ") for f in lane.flags if f != "too_few_positions"] for lane in record.lanes}
    notes = [_plain(f"{lane.label}: {note}") for lane in record.lanes for note in (*said[lane.label], *lane.notes)]
    if scored < MIN_SCORED:
        notes.append(f"{scored} scored positions are too few for a verdict; at least {MIN_SCORED} are needed.")
    if any(lane.memory and lane.memory.declared for lane in record.lanes):
        notes.append("*: bits declared by the method's author, not counted; sizes are computed from them.")
    if env.weights_note:
        notes.append(_plain(env.weights_note))
    if expected := expectation_sentence(record):
        notes.append(_plain(expected))
    parts = [[head], _align(rows), _by_confidence(record, arrays), _within(record, losses), notes]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _by_confidence(record: Record, arrays: Arrays) -> list[str]:
    """Mean KLD by the reference's top probability, a line a lane; nothing where nothing was scored."""
    shown = (*floors(record), *range(len(record.lanes)))
    found = [(lane_of(record, at).label, buckets) for at in shown if (buckets := by_confidence(arrays, at))]
    if not found:
        return []
    head = [f"{bucket.name} ({bucket.share:.0%})" for bucket in found[0][1]]
    rows = [("KLD where the reference's top probability is", *head, "")]
    rows += [(label, *(_kld(bucket.mean) for bucket in buckets), "") for label, buckets in found]
    return [line.rstrip() for line in _align(rows)]


def _within(record: Record, losses: Sequence[float]) -> list[str]:
    """Of each family with several widths the lane of the fewest bits within each loss."""
    found = fewest(record, losses)
    rows = [("fewest bits with a mean KLD within", *(f"{loss:g} nats" for loss in losses), "")]
    for family, kept in found.items():
        named = (f"{record.lanes[one.lane].label} ({one.bits:.2f})" if one else "none" for one in kept)
        rows.append((family, *named, ""))
    return [line.rstrip() for line in _align(rows)] if found else []


def _row(record: Record, arrays: Arrays, at: At) -> tuple[str, ...]:
    lane = lane_of(record, at)
    if lane.status == "failed" or lane.metrics is None or lane.memory is None:
        return (lane.label, *_NONE, f"failed: {_plain(lane.error or '')}")
    m, memory = lane.metrics, lane.memory
    mark = "*" if memory.declared else ""
    return (
        lane.label,
        f"{memory.key_bits:.2f}{mark}",
        f"{memory.value_bits:.2f}{mark}",
        f"{memory.kv_ratio:.1%}",
        _kld(m.kld_mean),
        f"{high.name} {_kld(high.value)}" if (high := tail(pooled(arrays, at, "kld"))) else "-",
        _number(m.flip_rate, "{:.1%}"),
        _number(above_floor(record, arrays, at), "{:.0%}"),
        _number(m.acceptance, "{:.1%}"),
        _number(m.ppl_ratio, "{:.3f}"),
        _number(m.attention_delta_mean, "{:.3f}"),
        _number(m.key_rmse, "{:.3f}"),
        "never" if m.first_divergence is None else f"token {m.first_divergence}",
        _plain(lane.text),
    )


def _kld(value: float | None) -> str:
    """Nats; what four decimals would make nothing of, such as the floors, by its two leading digits."""
    return _number(value, "{:.1e}" if value and abs(value) < 1e-3 else "{:.4f}")


def _number(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    text = form.format(value)
    return text.removeprefix("-") if float(text.rstrip("%")) == 0 else text  # no -0.0000


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    rows = [(_plain(label), *rest) for label, *rest in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    room = max(20, shutil.get_terminal_size((160, 24)).columns - sum(widths) - 2 * len(widths))
    lines = []
    for label, *numbers, text in rows:
        cells = [label.ljust(widths[0])] + [cell.rjust(w) for cell, w in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([*cells, text if len(text) <= room else text[: room - 1] + "…"]))
    return lines


def _plain(text: str) -> str:
    """One line without control characters: a model's text must not steer the terminal."""
    return "".join(c if c.isprintable() else " " for c in text).strip()
