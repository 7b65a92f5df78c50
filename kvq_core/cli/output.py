"""What commands print: data as JSON, and rows in columns."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any


def as_json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False, default=datetime.isoformat)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line a row, cells of a column one under the other."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
