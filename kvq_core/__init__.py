"""KVQ Explorer's core: one prompt, one model, many KV caches side by side.

The public names are those of ``__all__``, imported from the rooms when asked for. Start at ``pipeline.compare``;
docs/architecture.md shows the rooms.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

# `kernels/` is not a package on purpose (see kvq_kernels/__init__.py); this is the one place that puts it on the path.
if importlib.util.find_spec("kvq_kernels") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kernels"))

if TYPE_CHECKING:
    from kvq_core.errors import KvqError, MethodError, ModelError, SpecError, StoreError
    from kvq_core.inspection import Inspection, inspect_model
    from kvq_core.methods import make
    from kvq_core.models.captured import captured_steps
    from kvq_core.packed import packed_cache
    from kvq_core.pipeline.added import add_lane, capture_lane
    from kvq_core.pipeline.compare import compare, run
    from kvq_core.pipeline.layer_look import look_at
    from kvq_core.pipeline.roundtrip import Roundtrip, roundtrip
    from kvq_core.pipeline.solved import parse_spec
    from kvq_core.pipeline.why import measure_why
    from kvq_core.recommend.constraints import Advice
    from kvq_core.recommend.recommend import advise
    from kvq_core.record.fields import Record
    from kvq_core.spec import ComparisonSpec, Lane, from_function
    from kvq_core.studies.result import StudyResult
    from kvq_core.studies.spec import StudySpec, parse_study
    from kvq_core.studies.study import study

_HOMES = {
    "errors": ("KvqError", "MethodError", "ModelError", "SpecError", "StoreError"),
    "inspection": ("Inspection", "inspect_model"),
    "methods": ("make",),
    "models.captured": ("captured_steps",),
    "packed": ("packed_cache",),
    "pipeline.added": ("add_lane", "capture_lane"),
    "pipeline.compare": ("compare", "run"),
    "pipeline.layer_look": ("look_at",),
    "pipeline.roundtrip": ("Roundtrip", "roundtrip"),
    "pipeline.solved": ("parse_spec",),
    "pipeline.why": ("measure_why",),
    "recommend.constraints": ("Advice",),
    "recommend.recommend": ("advise",),
    "record.fields": ("Record",),
    "spec": ("ComparisonSpec", "Lane", "from_function"),
    "studies.result": ("StudyResult",),
    "studies.spec": ("StudySpec", "parse_study"),
    "studies.study": ("study",),
}
_ROOMS = ("methods", "models")  # reached as attributes: kvq_core.models.load

__all__ = [
    "Advice",
    "ComparisonSpec",
    "Inspection",
    "KvqError",
    "Lane",
    "MethodError",
    "ModelError",
    "Record",
    "Roundtrip",
    "SpecError",
    "StoreError",
    "StudyResult",
    "StudySpec",
    "add_lane",
    "advise",
    "capture_lane",
    "captured_steps",
    "compare",
    "from_function",
    "inspect_model",
    "look_at",
    "make",
    "measure_why",
    "packed_cache",
    "parse_spec",
    "parse_study",
    "roundtrip",
    "run",
    "study",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    for home, names in _HOMES.items():
        if name in names:
            found = getattr(importlib.import_module(f"{__name__}.{home}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
