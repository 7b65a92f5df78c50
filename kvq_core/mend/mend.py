"""A model's file mended for a cache format and a context: chosen, checked on other prompts, and only then written."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from kvq_core.errors import ModelError, SpecError
from kvq_core.machine.progress import Progress, Report, yielding
from kvq_core.mend import folder, gguf_file
from kvq_core.mend.check import Measured, check
from kvq_core.mend.choose import Choosing, Chosen
from kvq_core.mend.edit import Edit
from kvq_core.mend.fold import mendable_layers, row_factors
from kvq_core.mend.formats import CacheFormat
from kvq_core.mend.passes import ReferencePass
from kvq_core.mend.tensors import changes_of
from kvq_core.mend.texts import SCORED, ids_of, one_of, read
from kvq_core.models import LoadedModel, identity, load
from kvq_core.models.bundled import bundled_gguf
from kvq_core.models.gguf.header import Header, read_header
from kvq_core.spec import DEFAULT_MODEL
from kvq_core.studies.intervals import FEWEST

VERSION = 1  # raised when the same request would change a file otherwise
LEAST_CONTEXT = 256
MOST = 1024  # tokens of a short text


@dataclass(frozen=True)
class MendRequest:
    """What is asked. ``out`` None: the file itself is changed. ``only``: one of the two edits."""

    model: Path
    form: CacheFormat
    context: int
    out: Path | None
    prompts: Path | None = None
    check_prompts: Path | None = None
    allow: float = 0.001
    only: Literal["biases", "folded"] | None = None

    @property
    def header(self) -> Header | None:
        """Of a GGUF file; None of a folder."""
        return read_header(self.model) if self.model.is_file() else None


@dataclass
class Mended:
    """What was found and done; ``why_not``: why no file was written."""

    request: MendRequest
    chosen: Chosen
    short: Measured
    long: Measured
    why_not: str | None
    written_bytes: int = 0
    retyped: tuple[str, ...] = ()
    backup: Path | None = None
    ids: list[list[int]] | None = None  # of the prompts that were checked

    def data(self) -> dict[str, Any]:
        """As the JSON has it."""
        short = self.short.data()
        target = self.request.out or self.request.model
        return {
            "written": self.why_not is None,
            "why_not": self.why_not,
            "out": str(target) if self.why_not is None else None,
            "backup": None if self.backup is None else str(self.backup),
            "format": str(self.request.form),
            "context": self.request.context,
            "biases": self.chosen.edit.biases(self.chosen.pairs),
            "folded": [{"layer": layer, "gain": gain} for layer, gain in self.chosen.gains.items()],
            "changed_bytes": self.written_bytes,
            "as_f16": list(self.retyped),
            **{name: short[name] for name in ("full_precision_kld", "kld", "flips", "worst", "positions", "prompts")},
            "at_context": self.long.data(),
            "calibration": {"kld": {"before": self.chosen.before, "after": self.chosen.after}},
        }


def model_place(given: str) -> Path:
    """The file or folder that a model's name stands for. Raises ModelError where it is none of this machine."""
    path = bundled_gguf() if given == DEFAULT_MODEL else Path(given).expanduser()
    if path.is_file() or (path / "config.json").is_file():
        return path
    raise ModelError(
        f"{given} is no .gguf file and no folder with config.json; give the path of the file that is to be mended."
    )


def mending(request: MendRequest) -> Generator[Progress | Mended]:
    """``mend`` as it goes on; what came of it comes last. Closing it stops at the next step, and nothing
    is written."""
    last = Progress("Loading the model")
    with closing(yielding(lambda report: mend(request, report), "mending")) as steps:
        while True:
            try:
                last = next(steps) or last
            except StopIteration as end:
                yield end.value
                return
            yield last


@torch.no_grad()
def mend(request: MendRequest, report: Report) -> Mended:
    """Choose, check and write. Raises ModelError, SpecError and StoreError before anything is written."""
    header = request.header
    _check(request, header)
    model = load(str(request.model))
    request.form.check(model)
    mendable_layers(model)
    if request.context > model.shape.context:
        raise SpecError(
            f"--context {request.context:,} is beyond the {model.shape.context:,} tokens that {model.title} takes."
        )
    texts = read(request.check_prompts, "check")
    if seen := set(texts) & set(read(request.prompts, "calibrate")):
        number = 1 + min(map(texts.index, seen))
        raise SpecError(
            f"Prompt {number} to check on is one that edits are chosen on; give others with --check-prompts."
        )
    checked = ids_of(model, texts, min(MOST, request.context))
    if len(checked) < FEWEST:
        raise SpecError(f"{len(checked)} prompts to check on are too few for an interval; give {FEWEST} or more.")
    chosen = _choose(request, model, report)
    if not (chosen.edit.drops or chosen.edit.folds):
        blank = Measured()
        return Mended(request, chosen, blank, blank, "neither edit helps on the calibration prompts")
    short = check(model, chosen.edit, request.form, checked, SCORED, report)
    whole = one_of(model, texts, request.context)
    long = check(model, chosen.edit, request.form, [whole], SCORED, report)
    found = Mended(request, chosen, short, long, why_not(request, chosen.edit, short, long), ids=checked)
    if found.why_not is None:
        _write(found, model, header)
    return found


def why_not(request: MendRequest, edit: Edit, short: Measured, long: Measured) -> str | None:
    """Why what the check found is no reason to write a file; None where it is one."""
    gain = short.gain
    if gain is None or not gain[0] > 0:  # all comparisons so that what is no number writes no file
        told = "" if gain is None else f" ({gain[0]:.2g} to {gain[1]:.2g})"
        return f"the interval of what is gained on unseen prompts holds 0{told}"
    if not long.after[0].mean < long.before[0].mean:
        return f"nothing is gained at {request.context:,} tokens"
    full = float(np.maximum(short.full_precision, long.full_precision))  # of which one may be no number
    if edit.drops and not full < request.allow:
        told = f"{full:.2g} nats, and {request.allow:.2g} are allowed"
        return f"in full precision it changes the model by {told}; give a shorter --context"
    return None


def _check(request: MendRequest, header: Header | None) -> None:
    """Everything that can be refused before the model is loaded."""
    if header is None:
        folder.check_plain(request.model)
        if request.out is None:
            raise SpecError("--in-place is for GGUF files; give --out for a folder: what does not change is linked.")
        folder.check_target(request.out)
        return
    gguf_file.check_plain(header)
    if request.out is not None:
        gguf_file.check_target(request.out, header.path.stat().st_size)
        return
    gguf_file.check_own(header.path)
    if (kept := gguf_file.backup_of(header.path)).exists():
        raise SpecError(f"{kept} exists: run mend --undo {header.path} first.")


def _choose(request: MendRequest, model: LoadedModel, report: Report) -> Chosen:
    texts = read(request.prompts, "calibrate")
    ids = ids_of(model, texts, min(MOST, request.context))
    short = []
    for number, each in enumerate(ids):
        report(Progress("Reading prompts", number, len(ids) + 1, "prompts"))
        short += ReferencePass.of(model, each, [len(each)], SCORED)
    report(Progress("Reading prompts", len(ids), len(ids) + 1, "prompts"))
    whole = one_of(model, texts, request.context)
    lengths = sorted({max(2 * SCORED, request.context // part) for part in (4, 2, 1)})
    long = ReferencePass.of(model, whole, lengths, SCORED)
    return Choosing(model, request.form, short, long, request.allow, report, request.only).choose()


def said(request: MendRequest, found: Mended, source: str) -> dict[str, Any]:
    """What a mended file says of itself."""
    data = found.data()
    told = {name: data[name] for name in ("changed_bytes", "biases", "folded", "kld")}
    return {"version": VERSION, "source": source, "format": str(request.form), "context": request.context, **told}


def _write(found: Mended, model: LoadedModel, header: Header | None) -> None:
    request = found.request
    factors = {name: factor.numpy() for name, factor in row_factors(model, found.chosen.edit).items()}
    if header is None:
        assert request.out is not None
        offsets = {name: own.offset for own in mendable_layers(model).values() for name in own.norms or ()}
        folder.write_copy(
            request.model, factors, offsets, request.out, said(request, found, identity.weights_of(request.model))
        )
        found.written_bytes = sum(factor.nbytes for factor in factors.values())
        return
    changes = changes_of(header, {name: np.asarray(factor, np.float32) for name, factor in factors.items()})
    found.retyped = tuple(change.entry.name for change in changes if change.retyped)
    found.written_bytes = sum(gguf_file.changed_bytes(header.path, change) for change in changes)
    told = said(request, found, identity.sha256_of(header.path))
    if request.out is None:
        found.backup = gguf_file.write_in_place(header, changes, told)
    else:
        gguf_file.write_copy(header, changes, request.out, told)
