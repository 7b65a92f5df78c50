"""KVQ Explorer's core: one prompt, one model, many KV caches side by side."""

import importlib.util
import sys
from pathlib import Path

# `kernels/` is not a package on purpose (see kvq_kernels/__init__.py); this is the one place that puts it on the path.
if importlib.util.find_spec("kvq_kernels") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kernels"))

from kvq_core.machine import interrupt

if Path(sys.argv[0] if sys.argv else "").name in ("-m", "kvq"):  # the command line, not somebody who imports this
    interrupt.watch()

from kvq_core.errors import KvqError, MethodError, ModelError, SpecError, StoreError
from kvq_core.methods import make
from kvq_core.packed import packed_cache
from kvq_core.pipeline.compare import compare, run
from kvq_core.pipeline.roundtrip import Roundtrip, roundtrip
from kvq_core.record.fields import Record
from kvq_core.spec import ComparisonSpec, Lane, parse_spec

__all__ = [
    "ComparisonSpec", "KvqError", "Lane", "MethodError", "ModelError", "Record", "Roundtrip", "SpecError", "StoreError",
    "compare", "make", "packed_cache", "parse_spec", "roundtrip", "run",
]  # fmt: skip
