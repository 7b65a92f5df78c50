"""What the form of a study holds, as a study. No Gradio here."""

import base64
import binascii
import json
import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvq_core.errors import SpecError, excerpt
from kvq_core.presets import with_bundle
from kvq_core.spec import ComparisonSpec
from kvq_core.studies.bounds import FileBounds
from kvq_core.studies.spec import StudySpec, parse_study
from kvq_core.studies.tasks import SUITES
from ui.form.lanes import LaneForm, to_spec
from ui.service.admission import check_prompts, check_study_bytes
from ui.service.housekeeping import PROMPTS

PASTE, FILE, TASKS = "Paste", "File", "Tasks"
WAYS = (PASTE, FILE, TASKS)
OF_COMPARE = "compare"  # in place of a bundle: the lanes of the form of Compare
NUMBERS = {"lengths": int, "depths": float}  # options of suites that the form has
_ROWS = re.compile(r"\s*(\[\s*)?\{")  # one a line, or a list


@dataclass(frozen=True)
class Form:
    """The values of the form in the order of its widgets. ``file``: what js/study.js tells of a file that was picked,
    {"name", "data" in base 64}; anybody's text. ``last``: what a last message of the assistant is, "" where rows
    say so."""

    way: str = PASTE
    text: str = ""
    file: str = ""
    skip: bool = False
    suite: str = "needle"
    n: float | None = 20
    seed: float | None = 0
    lengths: str = ""
    depths: str = ""
    last: str = ""
    models: tuple[str, ...] = ()
    lanes: str = OF_COMPARE
    new_tokens: float | None = 64


@dataclass(frozen=True)
class StudyRequest:
    """A study with its prompts inside, or with the suite that makes them; ``broken``: lines that were left out."""

    spec: StudySpec
    broken: tuple[str, ...] = ()


def study_of(form: Form, compare_lanes: list[LaneForm]) -> StudyRequest:
    """Raises KvqError with one line: what is wrong with prompts, lanes or limits."""
    shared = {
        "models": list(form.models),
        "max_new_tokens": _whole("New tokens", form.new_tokens),
        "lanes": _lanes(form.lanes, compare_lanes),
    }
    if form.way == TASKS:
        spec = parse_study({**shared, "prompts": _suite(form)})
        check_prompts(spec.prompts, max(1, len(spec.models)))
        return StudyRequest(spec)
    name, data = _given(form)
    check_study_bytes(len(data))
    return _with_file(shared, name, data, {"skip_broken": bool(form.skip), "last": form.last or None})


def _given(form: Form) -> tuple[str, bytes]:
    """Name and bytes of the prompts' file: what is pasted is one, too."""
    if form.way == FILE:
        return _sent(form.file)
    if not form.text.strip():
        raise SpecError("There are no prompts yet: paste one a line, or JSON objects, one a line.")
    return ("pasted.json" if _ROWS.match(form.text) else "pasted.txt"), form.text.encode()


def _sent(raw: str) -> tuple[str, bytes]:
    if not raw:
        raise SpecError("There is no file yet: choose a file of prompts.")
    try:
        told = json.loads(raw)
        name = str(told["name"])
        if "data" not in told:  # told by the browser, which does not send what is refused
            check_study_bytes(int(told["bytes"]))
        return name, base64.b64decode(told["data"], validate=True)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, binascii.Error):
        raise SpecError("The file could not be read; choose it again.") from None


def _with_file(shared: dict[str, Any], name: str, data: bytes, more: dict[str, Any]) -> StudyRequest:
    """Read as the command line reads a file, from a folder that is gone afterwards."""
    with TemporaryDirectory(prefix=PROMPTS) as folder:
        called = re.sub(r"[^\w.()+ -]", "_", Path(name).name)[-100:]
        path = Path(folder) / (called if called.strip(".") else "prompts")
        path.write_bytes(data)
        spec = parse_study({**shared, "prompts": {"file": str(path), **more}})
        prompts, broken = spec.prompts.read(FileBounds.here())
    return StudyRequest(spec.whole(prompts), broken)


def _suite(form: Form) -> dict[str, Any]:
    found: dict[str, Any] = {
        "suite": form.suite,
        "n": _whole("Prompts", form.n),
        "seed": _whole("Seed", form.seed),
    }
    fields = SUITES[form.suite].model_fields if form.suite in SUITES else {}
    for name in NUMBERS:
        if name in fields and (text := getattr(form, name).strip()):
            found[name] = _numbers(name, text)
    return found


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [NUMBERS[name](part) for part in text.split(",")]
    except ValueError:
        example = "120, 480" if name == "lengths" else "0, 0.5, 1"
        raise SpecError(f"{name} = {excerpt(text)} is not allowed; give numbers such as {example}.") from None


def _whole(title: str, given: float | None) -> int:
    if given is None or not float(given).is_integer():
        raise SpecError(f"{title}: {excerpt(given)} is not allowed; give a whole number.")
    return int(given)


def _lanes(chosen: str, of_compare: list[LaneForm]) -> list[dict[str, Any]]:
    if chosen == OF_COMPARE:
        return to_spec(of_compare)
    lanes = with_bundle(ComparisonSpec(prompt="-"), str(chosen)).lanes
    return [lane.model_dump(mode="json", exclude_defaults=True) for lane in lanes]
