"""KVQ Explorer's core: one prompt, one model, many KV caches side by side."""

import importlib.util
import sys
from pathlib import Path

# `kernels/` is not a package on purpose (see kvq_kernels/__init__.py); this is the one place that puts it on the path.
if importlib.util.find_spec("kvq_kernels") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kernels"))
