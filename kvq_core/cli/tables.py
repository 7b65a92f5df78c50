"""Plain-text views of methods, presets and records, for terminals."""

import inspect
import shutil
import textwrap
from collections.abc import Iterable

from kvq_core.analysis.expected import expectation_sentence
from kvq_core.analysis.verdict import MIN_SCORED
from kvq_core.methods import Method, knobs, methods
from kvq_core.presets import Preset
from kvq_core.record.fields import LaneRecord, Record

_HEADER = (
    "lane",
    "K bits",
    "V bits",
    "size",
    "KLD mean",
    "KLD p99",
    "flips",
    "drafts kept",
    "PPL ratio",
    "score Δ",
    "key error",
    "diverges",
    "text",
)
_NONE = ["-"] * (len(_HEADER) - 2)


def list_methods() -> str:
    """The methods for people: what each does, and its knobs with default and range."""
    return "\n\n".join(_method(name, cls) for name, cls in methods().items())


def _method(name: str, cls: type[Method]) -> str:
    lines = [f"{name} - {cls.title}" + (f"  {cls.paper}" if cls.paper else "")]
    first = inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0]
    lines += textwrap.wrap(" ".join(first.split()), 110, initial_indent="  ", subsequent_indent="  ")
    for knob in knobs(cls):
        default = "null" if knob.default is None else knob.default
        lines.append(f"    {knob.name:<16} {default!s:<8} {knob.allowed()}: {knob.help}")
    return "\n".join(lines)


def list_presets(found: Iterable[Preset]) -> str:
    """The presets for people: the question each answers, and its lanes."""
    return "\n\n".join(
        f"{preset.name} - {preset.title}\n  {preset.question}\n"
        f"  lanes: {', '.join(lane.label for lane in preset.spec.lanes)}"
        for preset in found
    )


def describe_record(record: Record) -> str:
    """A finished run as a table, one line a lane, with what a reader must know about the numbers below it."""
    env = record.environment
    scored = record.noise_floor.metrics.n_scored if record.noise_floor.metrics else 0
    head = f"run {record.id}  {env.model_title}  {env.dtype} on {env.device}  "
    head += f"{len(record.reference.prompt_token_ids)} prompt tokens, {scored} scored positions"
    rows = [_HEADER, ("reference", *_NONE, _plain(record.reference.text))]
    rows += [_row(lane) for lane in (record.noise_floor, *record.lanes)]
    # too few positions concern the whole run and are said once, below
    said = {lane.label: [f.replace("_", " ") for f in lane.flags if f != "too_few_positions"] for lane in record.lanes}
    notes = [_plain(f"{lane.label}: {note}") for lane in record.lanes for note in (*said[lane.label], *lane.notes)]
    if scored < MIN_SCORED:
        notes.append(f"{scored} scored positions are too few for a verdict; at least {MIN_SCORED} are needed.")
    if env.weights_note:
        notes.append(_plain(env.weights_note))
    if expected := expectation_sentence(record):
        notes.append(_plain(expected))
    return "\n".join([head, "", *_align(rows), *([""] if notes else []), *notes])


def _row(lane: LaneRecord) -> tuple[str, ...]:
    if lane.status == "failed" or lane.metrics is None or lane.memory is None:
        return (lane.label, *_NONE, f"failed: {_plain(lane.error or '')}")
    m, memory = lane.metrics, lane.memory
    return (
        lane.label,
        f"{memory.key_bits:.2f}",
        f"{memory.value_bits:.2f}",
        f"{memory.kv_ratio:.1%}",
        _number(m.kld_mean, "{:.4f}"),
        _number(m.kld_p99, "{:.4f}"),
        _number(m.flip_rate, "{:.1%}"),
        _number(m.acceptance, "{:.1%}"),
        _number(m.ppl_ratio, "{:.3f}"),
        _number(m.attention_delta_mean, "{:.3f}"),
        _number(m.key_rmse, "{:.3f}"),
        "never" if m.first_divergence is None else f"token {m.first_divergence}",
        _plain(lane.text),
    )


def _number(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    text = form.format(value)
    return text.removeprefix("-") if float(text.rstrip("%")) == 0 else text  # no -0.0000


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    rows = [(_plain(label), *rest) for label, *rest in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER) - 1)]
    room = max(20, shutil.get_terminal_size((160, 24)).columns - sum(widths) - 2 * len(widths))
    lines = []
    for label, *numbers, text in rows:
        cells = [label.ljust(widths[0])] + [cell.rjust(w) for cell, w in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([*cells, text if len(text) <= room else text[: room - 1] + "…"]))
    return lines


def _plain(text: str) -> str:
    """One line without control characters: a model's text must not steer the terminal."""
    return "".join(c if c.isprintable() else " " for c in text).strip()
