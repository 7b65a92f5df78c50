"""What every method promises, checked on small random models: the contract of kvq_core/methods/base.py."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from kvq_core.errors import KvqError, MethodError, abbreviate
from kvq_core.methods import Method, knobs, methods
from kvq_core.models import LoadedModel
from kvq_core.models.tiny import VOCABULARY, tiny
from kvq_core.packed.cache import lane_layers
from kvq_core.pipeline.trial import Trial, declares, short_claims, stepwise, trial
from kvq_core.spec import Lane

HEADS = (64, 128)  # head_dim of the models
SHORT, MIDDLE, LEAST = 5, 43, 96  # prompt tokens; of the long one more, where windows are
MOST = 2048
NEW = 8
LOGITS = 5e-4  # of standard deviation 1: what sums in another order move, once rounded to fp16
FLIPPED = 1e-2  # the same of a method that rounds queries: sums in another order carry some over a tie
Outcome = Literal["ok", "skip", "FAIL"]


@dataclass(frozen=True)
class Check:
    """One promise. ``said``: what was found, or why it does not apply."""

    name: str
    outcome: Outcome
    said: str = ""


@dataclass
class _Case:
    """A method at its defaults on a model that it does not refuse."""

    method: Method
    model: LoadedModel

    @property
    def lane(self) -> Lane:
        return Lane(method=self.method.name)

    @property
    def long(self) -> int:
        """Tokens of a prompt of which some leave every window."""
        held = (w.sink + w.recent + 2 * (w.step or 0) for w in self.method.windows())
        return min(MOST, max(LEAST, max(held) + 33))


Found = tuple[Outcome, str]


def check_method(name: str) -> Iterator[Check]:
    """The checks of a method of that name, one after the other. Raises SpecError for a name there is none of."""
    Lane(method=name)
    cls = methods()[name]
    yield _checked("described", lambda: _described(cls))
    yield _checked("frozen", lambda: _frozen(cls))
    method = cls()
    refusals = {size: method.why_not(tiny(size).shape) for size in HEADS}
    yield _checked("shapes", lambda: _shapes(refusals))
    taken = [size for size, reason in refusals.items() if reason is None]
    if not taken:
        return
    case = _Case(method, tiny(taken[0]))
    if method.lacks(case.model.ref):
        yield Check("stores", "skip", "it needs data that is learned from a model")
        return
    runs: dict[tuple[int, int], Trial] = {}
    for size in taken:
        for tokens in (SHORT, MIDDLE, _Case(method, tiny(size)).long):
            runs[size, tokens] = trial(tiny(size), case.lane, _ids(tokens), NEW)
    found = list(runs.values())
    yield _checked("fits", lambda: _fits(runs))
    if any(run.error for run in found):
        return
    yield _checked("finite", lambda: _all(bool(run.logits.isfinite().all()) for run in found))
    yield _checked("engages", lambda: _engages(case, found))
    yield _checked("reads its store", lambda: _no(run.unlike for run in found))
    yield _checked("counts", lambda: _counts(found))
    yield _checked("same twice", lambda: _twice(case, runs[taken[0], MIDDLE]))
    yield _checked("token by token", lambda: _stepwise(case))
    yield _checked("packed", lambda: _packed(case, runs[taken[0], case.long]))


def _checked(name: str, check: Callable[[], Found]) -> Check:
    try:
        return Check(name, *check())
    except Exception as error:  # it is anybody's code
        said = str(error) if isinstance(error, KvqError) else f"{type(error).__name__}: {error}"
        return Check(name, "FAIL", abbreviate(" ".join(said.split()), 300))


def _ids(tokens: int) -> list[int]:
    return torch.randint(3, VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(tokens)).tolist()


def _no(complaints: Iterator[str | None]) -> Found:
    """Fails with the first complaint there is."""
    first = next(filter(None, complaints), None)
    return ("ok", "") if first is None else ("FAIL", first)


def _all(good: Iterator[bool]) -> Found:
    return ("ok", "") if all(good) else ("FAIL", "NaN or infinity in the logits of the lane")


def _described(cls: type[Method]) -> Found:
    if not inspect.cleandoc(cls.__doc__ or "") or cls.__doc__ == Method.__doc__:
        return "FAIL", "no docstring: the page, the command line and the API show it"
    named = cls.model_fields.items()
    bare = [name for name, info in named if not (info.title and info.description)]
    return ("FAIL", f"knobs without title or description: {', '.join(bare)}") if bare else ("ok", _of(len(knobs(cls))))


def _of(count: int) -> str:
    return f"{count} knob{'s' * (count != 1)}"


def _frozen(cls: type[Method]) -> Found:
    built = cls()
    hash(built)  # methods are keys of what lanes share
    if cls(**built.model_dump(mode="json")) != built:
        return "FAIL", "made again from its own knobs it is another method"
    return "ok", built.summary()


def _shapes(refusals: dict[int, str | None]) -> Found:
    said = [f"head_dim {size} refused: {reason}" for size, reason in refusals.items() if reason is not None]
    if len(said) == len(refusals):
        return "FAIL", f"runs on none of the models; {said[0]}"
    return "ok", "; ".join(said)


def _fits(runs: dict[tuple[int, int], Trial]) -> Found:
    where = ((f"head_dim {size}, {tokens} tokens", run.error) for (size, tokens), run in runs.items())
    failed = [f"{place}: {error}" for place, error in where if error]
    lengths = ", ".join(str(tokens) for tokens in dict.fromkeys(tokens for _, tokens in runs))
    return ("FAIL", failed[0]) if failed else ("ok", f"prompts of {lengths} tokens and {NEW} more")


def _engages(case: _Case, found: list[Trial]) -> Found:
    if not case.method.quantizes:
        return "ok", "it quantizes nothing, as it says"
    if not any(stream.blocks for run in found for _, stream in run.streams):
        return "FAIL", f"it quantizes, and no token of {MOST:,} leaves its window"
    return "ok", ""


def _counts(found: list[Trial]) -> Found:
    if short := [said for run in found for said in short_claims(run)]:
        return "FAIL", short[0]
    if not all(all(size > 0 for size in stream.nbytes().values()) for run in found for _, stream in run.streams):
        return "FAIL", "a part of the store takes no bytes"
    if any(declares(run) for run in found):
        return "skip", "bits declared, not counted"
    stored = [8 * sum(s.nbytes().values()) / s.decode().numel() for _, s in found[-1].streams]
    return "ok", f"{' and '.join(f'{bits:.3g}' for bits in stored)} bits a key and a value of the longest prompt"


def _twice(case: _Case, before: Trial) -> Found:
    again = trial(case.model, case.lane, _ids(MIDDLE), NEW)
    if not torch.equal(before.logits, again.logits):
        return "FAIL", "another result for the same prompt: random numbers need a seed of their own"
    first, second = (case.method.data_hash(case.model.ref) for _ in range(2))
    return ("ok", "") if first == second else ("FAIL", "data_hash differs from one call to the next")


def _stepwise(case: _Case) -> Found:
    try:
        found = stepwise(case.model, case.lane, _ids(case.long), case.long // 2)
    except MethodError as error:
        return "skip", str(error)
    if other := [tensor for tensor, said in found.items() if said == "another"]:
        return "FAIL", (
            f"{' and '.join(other)} that enter one by one are not stored as in a prompt; say so with a window that is "
            "prompt_only or rewritten, or with encode_prompt"
        )
    reasons = [f"{tensor}: {said}" for tensor, said in found.items() if said != "same"]
    return ("skip" if len(reasons) == len(found) else "ok"), "; ".join(reasons)


def _packed(case: _Case, lane: Trial) -> Found:
    """Fed the same tokens, the packed cache answers as the lane did."""
    if not case.method.quantizes:
        return "skip", "it quantizes nothing"
    ids, model = _ids(case.long), case.model
    try:
        layers = lane_layers(case.lane, model.model, "torch", 0, model.ref, model.rotations)

        def attend(layer: int, *tensors: torch.Tensor) -> torch.Tensor:
            return layers[layer].attend(*tensors)  # type: ignore[arg-type]

        model.forward(torch.tensor([ids]), 0, attend)
        steps = ((torch.tensor([[token]]), len(ids) + at) for at, token in enumerate(lane.fed))
        logits = torch.cat([model.forward(token, at, attend)[0] for token, at in steps])
    except MethodError as error:
        return "skip", str(error)
    off = float((logits - lane.logits).abs().max())
    most = LOGITS if case.method.query_rounding(case.model.ref) is None else FLIPPED
    return ("ok", "") if off <= most else ("FAIL", f"logits are {off:.2g} from the lane's")
