"""What the form of a decision holds: a study, planned, and what is asked of it. No Gradio here."""

from dataclasses import dataclass, field
from pathlib import Path

from kvq_core.engines import engines
from kvq_core.errors import KvqError, SpecError, excerpt
from kvq_core.limits import limits
from kvq_core.recommend.decision import DecisionRequest
from kvq_core.recommend.policies import ScoringBudget
from kvq_core.recommend.recommend import BUNDLES, study_for
from kvq_core.settings import settings
from kvq_core.spec import MAX_LANES
from kvq_core.studies.spec import StudySpec
from ui.study.asked import Form as PromptsForm
from ui.study.asked import study_of

PROMPTS, STUDY = "New prompts", "A study"
SOURCES = (PROMPTS, STUDY)
MEMORY, CACHE, BITS, LEAST = "Memory", "Cache", "Bits", "Smallest"
ROOMS = (MEMORY, CACHE, BITS, LEAST)
ANY = "any"  # engine


@dataclass(frozen=True)
class DecideForm:
    """The form's values; ``prompts`` of the card that the place Study has, too. ``weights``: a file a line."""

    source: str = PROMPTS
    prompts: PromptsForm = field(default_factory=PromptsForm)
    model: str = ""
    study: str = ""
    of_model: str = ""  # which of the study's; the first where it is not said
    room: str = MEMORY
    size: str = "24GB"
    context: float | None = 32_768
    batch: float | None = 8
    tolerance: str = "close"
    engine: str = ANY
    layers: bool = True
    weights: str = ""
    batched_tokens: str = ""  # of the engines that reserve by them; empty: as theirs

    @property
    def asked(self) -> DecisionRequest:
        """Raises SpecError in one line."""
        told = self.size.strip()
        if self.room != LEAST and not told:
            raise SpecError(f"{self.room}: nothing is given; give {_example(self.room)}, or choose {LEAST}.")
        name = {MEMORY: "memory", CACHE: "cache", BITS: "bits"}.get(self.room)
        given = {} if name is None else {name: _number(told) if self.room == BITS else told}
        engine = None if self.engine in ("", ANY) else self.engine
        numbers = {"context": _whole("Context", self.context), "batch": _whole("Sequences", self.batch)}
        if self.at_once is not None:
            numbers["batched_tokens"] = self.at_once
        return DecisionRequest.of(**given, **numbers, tolerance=self.tolerance.strip() or "close", engine=engine)

    @property
    def at_once(self) -> int | None:
        """New tokens that the engine reads at once, where it reserves by them and they are given."""
        row = engines().get(self.engine)
        given = self.batched_tokens.strip() if row and row.batched_tokens else ""
        if given and not given.isdecimal():
            raise SpecError(f"New tokens that it reads at once: {excerpt(given)} is not allowed; give a whole number.")
        return int(given) if given else None

    @property
    def files(self) -> tuple[Path, ...]:
        """Weights to choose from. Raises SpecError on a public instance, whose files are the server's."""
        names = [line.strip() for line in self.weights.splitlines() if line.strip()]
        if names and settings().public:
            raise SpecError("weights: a public instance chooses none of its files; advise at the command line does.")
        if names and self.room != MEMORY:
            raise SpecError("weights are chosen under a memory; give Memory.")
        return tuple(Path(name) for name in names)

    @property
    def is_empty(self) -> bool:
        """Whether no prompts and no study are given yet."""
        if self.source == STUDY:
            return not self.study.strip()
        form = self.prompts
        return (form.way == "Paste" and not form.text.strip()) or (form.way == "File" and not form.file)


def new_study(form: DecideForm) -> tuple[StudySpec, tuple[str, ...]]:
    """The study that the form's prompts make, and the lines of its file that are left out. Raises KvqError."""
    lanes = BUNDLES.get(form.asked.ask().engine or "", "deploy")
    asked = study_of(PromptsForm(**{**vars(form.prompts), "models": (form.model,), "lanes": lanes}), [])
    return study_for(form.model, asked.spec.prompts.read()[0], form.asked.engine), asked.broken


def scoring_budget() -> ScoringBudget | None:
    """How much scoring of layers this instance takes; None: none, for here the model works elsewhere."""
    if settings().zero_gpu:
        return None
    most = limits()
    return ScoringBudget(min(MAX_LANES, most.lanes or MAX_LANES), most.cells)


def demand_lanes(spec: StudySpec) -> None:
    """Raises SpecError where formats of all engines are more lanes than this instance takes."""
    most, given = limits().lanes, len(spec.comparison.lanes)
    if most is not None and given > most:
        raise KvqError(f"All engines together have {given} formats; this instance takes {most} lanes. Name an engine.")


def _example(room: str) -> str:
    return "5.5" if room == BITS else "24GB"


def _number(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        raise SpecError(f"bits = {given[:20]!r} is not allowed; give a number above 0, at most 16.") from None


def _whole(title: str, given: float | None) -> int:
    if given is None or not float(given).is_integer():
        raise SpecError(f"{title}: {given!r} is not allowed; give a whole number.")
    return int(given)
