"""Mended GGUF files of tiny models: a file, an edit of it, and work that is killed on the way."""

import hashlib
import os
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf import GGMLQuantizationType as Kind

from kvq_core.mend.edit import Edit
from kvq_core.mend.fold import row_factors
from kvq_core.mend.tensors import changes_of
from kvq_core.models import load
from kvq_core.models.gguf.header import read_header
from kvq_core.models.pairs import Pairs
from tests.support.gguf_files import source, write

SAID = {"version": 1, "source": "0" * 64, "format": "q4_0/q4_0", "context": 512, "biases": [], "folded": [], "kld": {}}


def made(tmp_path: Path, architecture: str = "qwen2", kind: Kind = Kind.Q8_0, **changes: Any) -> tuple[Path, Any]:
    model = source(architecture, **changes)
    return write(tmp_path / "m.gguf", model, kind), model


def changed(file: Path, scale: bool = True) -> tuple[Any, Edit, list]:
    """The header, an edit of random scales and of half the pairs' biases, and the changed tensors."""
    model = load(str(file))
    shape, rope = model.shape, model.rope(2)
    edit = Edit.none(shape.layers, shape.kv_heads, shape.head_dim)
    torch.manual_seed(5)
    for layer in shape.alike:
        pairs = Pairs.of_rope(rope, layer)
        drawn = torch.randn(shape.kv_heads, len(pairs.theta))
        if scale:
            edit = edit.with_scales(layer, pairs.spread(drawn).exp())
        edit = edit.with_keep(layer, pairs.spread((drawn > 0).float()))
    header = read_header(file)
    return header, edit, changes_of(header, {name: x.float().numpy() for name, x in row_factors(model, edit).items()})


def hashes(file: Path) -> dict[str, str]:
    return {each.name: hashlib.sha256(each.data.tobytes()).hexdigest() for each in gguf.GGUFReader(file).tensors}


def killed_at(count: int, work: Any, *names: str) -> bool:
    """Run ``work`` in a fork that is killed at its ``count``-th call of these functions of os; whether it was."""
    child = os.fork()
    if child == 0:
        left = [count]

        def dying(real: Any, *args: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), 9)
            return real(*args, **more)

        for name in names:
            setattr(os, name, partial(dying, getattr(os, name)))
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -9)
    return status == -9
