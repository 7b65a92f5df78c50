"""A step's tokens enter the stores of its rows."""

import threading
import time

from kvq_core.engine.cache import LaneCache, Part
from kvq_core.engine.lane_state import LaneState, failure_line
from kvq_core.engine.rows import Rows

_ADDING = threading.Lock()  # two parts of a lane may end at once


def settle_part(rows: Rows, row: int, state: LaneState, cache: LaneCache, part: Part, fresh: int) -> None:
    """Let a row's ``fresh`` tokens enter a part of its cache; any thread."""
    began = time.perf_counter()
    try:
        rows.store_tokens(row, cache, part, fresh)
    except Exception as error:  # whatever a method does wrong is its lane's failure, not the run's
        state.error = failure_line(error)
    with _ADDING:
        state.encode_decode_s += time.perf_counter() - began
