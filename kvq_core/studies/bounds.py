"""What a file of prompts that a visitor sends may unfold to: counted as it is read, and not after."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvq_core.errors import LimitError, SpecError, abbreviate
from kvq_core.limits import limits
from kvq_core.machine.apart import apart
from kvq_core.spec.chats import CHATS

COLUMNS = 64
LEAVES = 1024  # columns of Parquet, what they hold within them counted
CELL = 1_000_000  # characters of one text
UNFOLDED = 32  # times the bytes that a study's prompts may have as they are sent
ROW = 1000  # bytes that a row counts at least: what is held of it beside its texts
SECONDS, ROOM = 10.0, 1024**3  # of the process that unfolds a Parquet file
AT_ONCE = 16  # rows of Parquet that are unfolded together

Rows = Iterator[tuple[str, Any]]  # where a row stands, and its data, or the SpecError that it is


@dataclass(frozen=True)
class FileBounds:
    """``rows``: None, no limit but that of ``bytes``."""

    rows: int | None
    bytes: int

    @classmethod
    def here(cls) -> "FileBounds":
        """What this instance takes from its visitors."""
        most = limits()
        return cls(most.prompts, UNFOLDED * most.study_bytes)

    def checked(self, rows: Rows) -> Rows:
        """The same rows, until there are too many or too large ones: then it raises LimitError."""
        total = 0
        for count, (place, row) in enumerate(rows, 1):
            self.check(count, total := total + max(ROW, _size(row, place)))
            yield place, row

    def check(self, rows: int, unfolded: int) -> None:
        """Raises LimitError."""
        if self.rows is not None and rows > self.rows:
            raise LimitError(
                f"The file has more than {self.rows:,} prompts; this instance takes {self.rows:,} of a study."
            )
        if unfolded > self.bytes:
            raise LimitError(
                f"The file unfolds to more than {self.bytes:,} bytes, the most this instance reads; send fewer prompts."
            )


def check_columns(name: str, columns: list[str]) -> None:
    """Raises SpecError for a table without prompts, or with more columns than any has."""
    if len(columns) > COLUMNS:
        raise SpecError(f"{name} has {len(columns):,} columns; at most {COLUMNS} are read.")
    if not {"prompt", "body", "request", "arguments", *CHATS} & set(columns):
        there = ", ".join(columns[:12]) or "none"
        raise SpecError(f"{name} has no column prompt or messages; it has {abbreviate(there, 200)}.")


def read_parquet(path: Path, bounds: FileBounds | None) -> Rows:
    """Rows of a Parquet file; bounded ones are unfolded in a process of their own, since what the file says of its size
    may be wrong."""
    import pyarrow.parquet  # noqa: F401 - before the fork

    if bounds is None:
        yield from _unfolded(path, None)
        return
    try:
        yield from apart(lambda: list(bounds.checked(_unfolded(path, bounds))), SECONDS, ROOM)
    except (TimeoutError, MemoryError):
        raise LimitError(
            f"{path.name} takes more than {SECONDS:g} s or {ROOM / 1024**3:g} GiB to unfold; send fewer prompts."
        ) from None


def _unfolded(path: Path, bounds: FileBounds | None) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            told = file.metadata
            check_columns(path.name, file.schema_arrow.names)
            if told.num_columns > LEAVES:
                raise SpecError(
                    f"{path.name} has {told.num_columns:,} columns, nested ones counted; give flatter ones."
                )
            if bounds is not None:
                groups = [told.row_group(at).total_byte_size for at in range(told.num_row_groups)]
                bounds.check(told.num_rows, max(ROW * told.num_rows, sum(groups)))
            batches = file.iter_batches(AT_ONCE, use_threads=bounds is None)
            rows = (row for batch in batches for row in batch.to_pylist())
            yield from ((f"row {number}", _without_nulls(row)) for number, row in enumerate(rows, 1))
    except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the file system; Arrow's own have none
            raise
        said = abbreviate(" ".join(str(error).replace(str(path), path.name).split()), 200)
        raise SpecError(f"{path.name} is not valid Parquet: {said}.") from None


def _without_nulls(value: Any) -> Any:
    """Parquet gives every object all fields that any of them has."""
    if isinstance(value, dict):
        return {name: _without_nulls(held) for name, held in value.items() if held is not None}
    return [_without_nulls(held) for held in value] if isinstance(value, list) else value


def _size(row: Any, place: str) -> int:
    """Characters of a row's texts, and some for all else. Raises LimitError for a text that is too long."""
    total, left = 0, [row]
    while left:
        value = left.pop()
        if isinstance(value, str | bytes):
            if len(value) > CELL:
                raise LimitError(f"{place} has a text of {len(value):,} characters; at most {CELL:,} are read.")
            total += len(value)
        elif isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value
        total += 8
    return total
