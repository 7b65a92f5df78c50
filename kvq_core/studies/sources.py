"""Where a study's prompts come from: a file, texts, rows, or a suite that is made from a seed."""

import json
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from kvq_core.complaints import check_depth, check_text, first_line
from kvq_core.errors import PATH, SpecError, abbreviate, excerpt
from kvq_core.machine import files
from kvq_core.machine.owner import demand_wanted
from kvq_core.spec.chats import CHATS
from kvq_core.spec.conversation import Last
from kvq_core.spec.part import SpecPart
from kvq_core.studies.bounds import FileBounds, Rows, check_columns, read_parquet
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.task_suites import suite

READERS = (".jsonl", ".json", ".csv", ".parquet", ".txt")
_NESTED = (*CHATS, "tools", "facts")  # columns that a CSV file holds as JSON
_WAYS = ("file", "texts", "rows", "suite")


class PromptSource(SpecPart):
    """One of file, texts, rows and suite, and what goes with it."""

    file: str | None = Field(None, max_length=4096, description=f"A file of prompts: {', '.join(READERS)}.")
    skip_broken: bool = Field(False, description="Leave out lines of the file that cannot be read, and tell of them.")
    last: Last = None
    texts: tuple[str, ...] | None = Field(None, min_length=1, description="Prompts as they are.")
    rows: tuple[StudyPrompt, ...] | None = Field(None, min_length=1, description="Prompts with their other columns.")
    suite: str | None = Field(None, max_length=100, description="The name of a suite of prompts.")
    n: int = Field(40, ge=1, le=100_000, description="Prompts of the suite.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of the suite.")
    options: dict[str, JsonValue] = Field({}, description="Other options of the suite, which may stand beside n.")

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, data: Any) -> Any:
        """A suite's own options stand beside ``n``; ``last`` is meant for every row."""
        if isinstance(data, dict) and data.get("last") and isinstance(data.get("rows"), list):
            return {**data, "rows": [_asked(row, data["last"]) for row in data["rows"]]}
        if not isinstance(data, dict) or data.get("suite") is None:
            return data
        own = {name: value for name, value in data.items() if name not in cls.model_fields}
        known = {name: value for name, value in data.items() if name in cls.model_fields}
        return {**known, "options": {**known.get("options", {}), **own}} if own else known

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        given = [way for way in _WAYS if getattr(self, way) is not None]
        if len(given) != 1:
            said = f"{' and '.join(given)} are given" if given else "none is given"
            raise SpecError(f"prompts: {said}; give one of {', '.join(_WAYS)}.")
        if self.options and self.suite is None:
            raise SpecError("prompts: options go with a suite.")
        if own := {"name", "n", "seed"} & set(self.options):
            raise SpecError(f"prompts: {min(own)} is no option of a suite; give n and seed beside options.")
        return self

    def read(self, bounds: FileBounds | None = None) -> tuple[tuple[StudyPrompt, ...], tuple[str, ...]]:
        """The prompts, every one with an id, and a line for each that was left out; ``bounds`` of a visitor's file.

        Raises SpecError where there are none, or two have one id; LimitError for more than ``bounds``.
        """
        left: list[str] = []
        if self.file is not None:
            found = _of_file(Path(self.file), self.skip_broken, left, self.last, bounds)
        elif self.texts is not None:
            found = [_parsed({"prompt": text}, f"text {at}") for at, text in enumerate(self.texts, 1)]
        else:
            found = list(self.rows or ()) if self.suite is None else list(self._suite())
        if not found:
            raise SpecError("prompts: there are none; give at least one.")
        return _with_ids(found), tuple(left)

    def _suite(self) -> tuple[StudyPrompt, ...]:
        return suite(str(self.suite), n=self.n, seed=self.seed, **self.options)


def _with_ids(found: list[StudyPrompt]) -> tuple[StudyPrompt, ...]:
    """Those without an id get their number, or the next one that nobody has. Raises SpecError where two were given the
    same."""
    given = {each.id for each in found}
    free = (str(number) for number in count(len(found) + 1) if str(number) not in given)
    own = ("" if each.id else str(at) if str(at) not in given else next(free) for at, each in enumerate(found, 1))
    named = [each if each.id else each.model_copy(update={"id": id}) for id, each in zip(own, found, strict=True)]
    twice = [name for name, times in Counter(each.id for each in named).items() if times > 1]
    if twice:
        at = [number for number, each in enumerate(named, 1) if each.id == twice[0]]
        raise SpecError(
            f"prompts: the id {excerpt(twice[0])} is given to prompts {', '.join(map(str, at[:5]))}"
            f"{' and others' if len(at) > 5 else ''}; ids must differ."
        )
    return tuple(named)


def _asked(row: Any, last: str | None) -> Any:
    return {"last": last, **row} if isinstance(row, dict) and last else row


def _of_file(path: Path, skip: bool, left: list[str], last: str | None, bounds: FileBounds | None) -> list[StudyPrompt]:
    """Its rows; a row that cannot be read raises SpecError, or with ``skip`` is told in ``left``."""
    if path.suffix not in READERS:
        raise SpecError(f"prompts: {excerpt(path.name)} is not allowed; files end in {', '.join(READERS)}.")
    found = []
    try:
        for place, row in _rows(path, bounds):
            demand_wanted()
            try:
                found.append(_parsed(_asked(row, last), f"{path.name}, {place}"))
            except SpecError as error:
                if not skip:
                    raise SpecError(
                        f"{error} In a study, skip_broken = true beside file leaves such lines out."
                    ) from None
                left.append(str(error))
    except OSError as error:
        told = path.name if bounds is not None else str(path)  # a visitor's file lies where only the server knows
        raise SpecError(f"Cannot read {abbreviate(told, PATH)}: {error.strerror or 'the file is damaged'}.") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path.name} is not text in UTF-8; save it as such.") from None
    return found


def _parsed(row: Any, name: str) -> StudyPrompt:
    """A row as a prompt. Raises SpecError with one line that begins with its place."""
    if isinstance(row, SpecError):
        raise SpecError(f"{name}: {row}")
    if not isinstance(row, dict):
        raise SpecError(f"{name}: a prompt is an object with fields such as prompt and id, not {type(row).__name__}.")
    check_depth(row, name)
    check_text(row, name)
    try:
        return StudyPrompt.model_validate(row)
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from None
    except ValidationError as error:
        raise SpecError(first_line(error, StudyPrompt, name)) from None


def _rows(path: Path, bounds: FileBounds | None) -> Rows:
    if path.suffix == ".parquet":
        return read_parquet(path, bounds)
    rows = _READ[path.suffix](path)
    return rows if bounds is None else bounds.checked(rows)


def _jsonl(path: Path) -> Rows:
    with path.open(encoding=files.encoding_of(path)) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"line {number}", _json(line)


def _list(path: Path) -> Rows:
    """A list of rows, or one; or lines of JSON after all."""
    found = _json(path.read_text(encoding=files.encoding_of(path)))
    if isinstance(found, SpecError):
        yield from _jsonl(path)
    else:
        yield from ((f"row {at}", row) for at, row in enumerate(found if isinstance(found, list) else [found], 1))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        return SpecError(f"this is not valid JSON: {abbreviate(error.msg)} at character {error.pos + 1}.")
    except (ValueError, RecursionError) as error:
        return SpecError(f"this is not valid JSON: {abbreviate(str(error))}.")


def _text(path: Path) -> Rows:
    with path.open(encoding=files.encoding_of(path)) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"line {number}", {"prompt": line.rstrip("\n")}


def _csv(path: Path) -> Rows:
    import csv

    csv.field_size_limit(2**31 - 1)  # of its own accord it takes 131,072 characters; prompts say how long they may be
    with path.open(encoding=files.encoding_of(path), newline="") as lines:
        reader = csv.DictReader(lines, restkey="", strict=True)
        try:
            check_columns(path.name, list(reader.fieldnames or ()))
        except csv.Error as error:
            raise SpecError(f"{path.name} is not valid CSV: {error}.") from None
        while True:
            try:
                row: Any = _cells(next(reader))
            except StopIteration:
                return
            except csv.Error as error:  # the lines after it can be read
                row = SpecError(f"this is not valid CSV: {error}.")
            yield f"line {reader.reader.line_num}", row  # its own number stays behind at a line that is not valid


def _cells(row: dict[str, Any]) -> Any:
    """A row of CSV: empty cells are not given; conversations, tools, and answers of several parts stand as JSON."""
    if "" in row:
        return SpecError("it has more cells than the first line has columns.")
    given: dict[str, Any] = {name: cell for name, cell in row.items() if cell not in (None, "")}
    if given.get("answer", "").startswith(("[", "{")):  # of verifiers that take several, or an object; or it is text
        values = _json(given["answer"])
        given["answer"] = given["answer"] if isinstance(values, SpecError) else values
    for name in _NESTED:
        if name in given:
            given[name] = _json(given[name])
        if isinstance(given.get(name), SpecError):
            return SpecError(f"{name}: {given[name]}")
    return given


_READ = {".jsonl": _jsonl, ".json": _list, ".csv": _csv, ".txt": _text}
