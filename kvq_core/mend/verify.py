"""Both files in llama.cpp itself, under its own cache types, on the prompts that the check took."""

from pathlib import Path
from typing import Any

import torch

from kvq_core.errors import SpecError
from kvq_core.machine.progress import Progress, Report
from kvq_core.mend.check import Measured
from kvq_core.mend.formats import CacheFormat
from kvq_core.mend.mend import Mended
from kvq_core.mend.passes import Scored
from kvq_core.servers.llama_cpp import BLOCK_BYTES, LlamaCpp, Types, version
from kvq_core.servers.tops import Apart, Top

REFERENCE = Types("f32", "f32")
SCORED = 16  # of a prompt's last tokens: the engine is asked for each by itself
TOP = 4096  # tokens that are told of each distribution, the others as one
SPARE = 8


def check_possible(form: CacheFormat, model: Path) -> None:
    """Raises SpecError where llama.cpp has no such cache types, or cannot read the model; EngineError where it is not
    installed."""
    unknown = [name for name in str(form).split("/") if name not in BLOCK_BYTES]
    if unknown or not model.is_file():
        said = f"has no cache type {unknown[0]}" if unknown else "reads GGUF files, and this is a folder"
        raise SpecError(f"--verify: llama.cpp {said}; leave --verify out.")
    version()


def verify(found: Mended, report: Report) -> dict[str, Any]:
    """What the check measured, by the engine: against the original under an F32 cache."""
    request = found.request
    assert request.out is not None and found.ids is not None, "refused, or not written, before"
    types = Types.of(str(request.form))
    runs = [(request.model, REFERENCE), (request.model, types), (request.out, types), (request.out, REFERENCE)]
    every = []
    for number, (file, each) in enumerate(runs):
        report(Progress("Running llama.cpp", number, len(runs)))
        every.append(engine_answers(file, each, found.ids))
    own, *others = every
    measured = Measured(*(compared(own, other) for other in others))
    return {"engine": f"xllamacpp {version()}", "flags": types.flags, **measured.data()}


def engine_answers(file: Path, types: Types, prompts: list[list[int]]) -> list[list[Top]]:
    """Of every prompt what the engine gave to its last tokens, one at a time."""
    with LlamaCpp(file, types, max(map(len, prompts)) + SPARE) as engine:
        return [engine.logprobs(ids[:-SCORED], ids[-SCORED:], TOP) for ids in prompts]


def compared(own: list[list[Top]], other: list[list[Top]]) -> list[Scored]:
    """KLD and whether the most probable token is the same, by prompt."""
    found = []
    for one, two in zip(own, other, strict=True):
        apart = Apart.of(one, two)
        found.append(Scored(torch.from_numpy(apart.kld), torch.from_numpy(apart.same)))
    return found
