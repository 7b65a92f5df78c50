"""transformers without its import of hqq: that takes .8 CPU seconds of a process that loads a model, where hqq is
installed, for a class of caches that nothing here uses. The method hqq imports its package itself."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

CACHES = "transformers.cache_utils"  # imports hqq where ``is_hqq_available`` says so


class WithoutHqq(MetaPathFinder):
    """Finds the module of caches once, and tells it that hqq is not there; everybody else is told the truth."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != CACHES:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            run, loader = spec.loader.exec_module, spec.loader
            loader.exec_module = lambda module: _without(run, module)  # type: ignore[method-assign]
        return spec


def _without(run: Any, module: ModuleType) -> None:
    from transformers import utils

    available = utils.is_hqq_available
    utils.is_hqq_available = lambda *_: False
    try:
        run(module)
    finally:
        utils.is_hqq_available = available


if CACHES not in sys.modules:
    sys.meta_path.insert(0, WithoutHqq())
