"""The advice as data, which the command, the API and the page show."""

from typing import Any

from kvq_core.spec.part import SpecPart


class LaneCandidate(SpecPart):
    """A lane of the study. ``bytes``: of its cache for what was asked, None where they are not known, ``reserved``
    where they are what the engine sets aside; ``shared``: of codebooks and the like, once beside them; ``host_copy``:
    in the host's memory; ``counted``: what of it follows from random numbers or from a formula; nats with their 95 %
    interval over prompts, None of fewer than 5; ``holds``: whether its figures are within the tolerance; ``front``: no
    other lane takes no more bytes and loses no more; ``why_not``: why it cannot be the answer, None where it can."""

    label: str
    bytes: int | None
    reserved: bool
    shared: int = 0
    host_copy: int = 0
    counted: tuple[str, ...] = ()
    kld_mean: float | None
    kld_low: float | None
    kld_high: float | None
    fits: bool | None
    holds: bool
    front: bool
    policy: bool
    flags: str | None
    why_not: str | None

    @property
    def beside(self) -> tuple[tuple[int, str], ...]:
        """Bytes beside those of the cache, and what they are of."""
        told = (self.shared, "of the model"), (self.host_copy, "in host memory")
        return tuple(each for each in told if each[0])


class Worst(SpecPart):
    """A prompt on which the answer loses most; ``link`` opens its run."""

    prompt: str
    kld: float
    run: str
    link: str


class WeightsFile(SpecPart):
    """``bytes``: None where they are not known; ``chosen``: whether it was chosen among several for the memory."""

    file: str
    bytes: int | None
    how: str
    chosen: bool


class Advice(SpecPart):
    """The answer and what it rests on. ``kind``: one lane is the answer and prompts drawn anew say so (``sure``); it
    cannot be told from another; none will do; or there are too few prompts. ``lane``: the recommended one as a lane has
    it, None where there is none; ``separates``: what it has over ``runner_up``, whose lane is ``runner_up_lane``;
    ``agreement``: the share of resamples of the prompts with the same recommendation; ``flags`` of the ``engine``, in
    the ``version`` that was read, or ``unflagged``, why the lane has none; ``batched_tokens``: new tokens it was taken
    to read at once, where its reserve hangs on them; ``helps``: what would change the answer;
    ``untested``: what nothing here says."""

    answer: str
    kind: str
    sure: bool
    lane: dict[str, Any] | None
    label: str | None
    runner_up: str | None
    runner_up_lane: dict[str, Any] | None = None
    separates: str | None
    flags: str | None
    unflagged: str | None = None
    agreement: float | None
    reasons: tuple[str, ...]
    front: tuple[LaneCandidate, ...]
    worst: tuple[Worst, ...]
    warnings: tuple[str, ...]
    untested: tuple[str, ...]
    helps: tuple[str, ...]
    study: str
    model: str
    prompts: int
    tolerance: str
    context: int
    batch: int
    room: str | None
    engine: str | None
    version: str | None
    batched_tokens: int | None = None
    weights: WeightsFile
    plain_bytes: int
    plain_fits: bool | None
