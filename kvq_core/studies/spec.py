"""What a study asks: models, prompts, and how each prompt is compared."""

from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from kvq_core.complaints import check_depth, check_text, first_line
from kvq_core.errors import SpecError, excerpt
from kvq_core.presets import parse_placed
from kvq_core.spec import ComparisonSpec, canonical_json, links, read_data
from kvq_core.spec.part import SpecPart
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.sources import PromptSource
from kvq_core.studies.task_suites import new_tokens

OF_A_PROMPT = (
    "prompt",
    "messages",
    "tools",
    "last",
    "continuation",
    "expect",
)  # given by each prompt, not by the study
_OWN = ("models", "prompts", "comparison")
_ANY = "any prompt"  # in the comparison that a study's prompts are put into
# What a study has otherwise than a single comparison: small records, both floors, the reference's own answer.
_DEFAULTS: dict[str, Any] = {"floors": "both", "free_text": False, "capture": {"detail": "off"}}


class StudySpec(SpecPart):
    """Models x prompts, each compared under the same lanes. Fields of a comparison stand beside models and prompts."""

    models: tuple[str, ...] = Field((), max_length=64, description="Model ids as in a comparison; empty: the default.")
    prompts: PromptSource = Field(description="Where the prompts come from.")
    comparison: ComparisonSpec = Field(description="All other fields, as in a comparison.")

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, data: Any) -> Any:
        """A comparison's fields, and a bundle, stand beside models and prompts."""
        if not isinstance(data, dict) or "comparison" in data:
            return data
        rest = {name: value for name, value in data.items() if name not in _OWN}
        if "model" in rest and "models" in data:
            raise SpecError("model and models are both given; give models alone.")
        if name := next((name for name in OF_A_PROMPT if name in rest), None):
            raise SpecError(f"{name} is given by each prompt of a study; put it into a column of prompts.")
        known = [name for name in (*ComparisonSpec.model_fields, "bundle") if name not in OF_A_PROMPT]
        if unknown := next((name for name in rest if name not in known), None):
            allowed = ", ".join(("models", "prompts", *known))
            raise SpecError(f"Unknown field {excerpt(unknown)}; allowed: {allowed}.")
        models = [rest.pop("model")] if "model" in rest else data.get("models", ())
        own = {name: data[name] for name in _OWN if name in data}
        own_length = _length(own.get("prompts"))
        comparison = parse_placed({**_DEFAULTS, **own_length, **rest, "prompt": _ANY})
        return {**own, "models": models, "comparison": comparison}

    @field_validator("models")
    @classmethod
    def _each_once(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        if twice := [model for model in models if models.count(model) > 1]:
            raise SpecError(f"models: {excerpt(twice[0])} is given twice; give each once.")
        return models

    @model_validator(mode="after")
    def _has_lanes(self) -> Self:
        if not self.comparison.lanes:
            raise SpecError("A study compares lanes; give lanes, or a bundle.")
        return self

    def changed(self) -> dict[str, Any]:
        """It as plain data, flat as it is given; prompts of a file or suite as the file or suite."""
        told = self.comparison.changed()
        rest = {name: value for name, value in told.items() if name not in ("model", "prompt")}
        kept = {name: self.comparison.model_dump(mode="json")[name] for name in _DEFAULTS}
        prompts = self.prompts.model_dump(mode="json", exclude_defaults=True)
        return {**kept, **rest, "models": list(self.models), "prompts": prompts}

    def canonical(self) -> str:
        """Canonical JSON of ``changed``."""
        return canonical_json(self.changed())

    def whole(self, prompts: tuple[StudyPrompt, ...]) -> "StudySpec":
        """The same study with its prompts inside, which needs no file; a suite's are made again from its seed."""
        if self.prompts.suite is not None:
            return self
        return self.model_copy(update={"prompts": PromptSource(rows=prompts)})


def _length(prompts: Any) -> dict[str, Any]:
    """``max_new_tokens`` of a suite that asks for longer answers than comparisons give."""
    name = prompts.get("suite") if isinstance(prompts, dict) else None
    needed = new_tokens(name) if isinstance(name, str) else None
    usual = ComparisonSpec.model_fields["max_new_tokens"].default
    return {"max_new_tokens": needed} if needed is not None and needed > usual else {}


def parse_study(data: Any) -> StudySpec:
    """A study from plain data. Raises SpecError in one line."""
    if not isinstance(data, dict):
        raise SpecError(f"A study is an object with fields such as prompts and lanes, not {type(data).__name__}.")
    check_depth(data, "The study")
    check_text(data, "The study")
    try:
        return StudySpec.model_validate(data)
    except ValidationError as error:
        raise SpecError(first_line(error, StudySpec)) from None


def read_study(path: Path) -> StudySpec:
    """A study from a ``.toml`` or ``.json`` file; a relative path of prompts is relative to it.

    Raises SpecError where the file cannot be read or says something impossible.
    """
    data = read_data(path)
    prompts = data.get("prompts") if isinstance(data, dict) else None
    if isinstance(prompts, dict) and isinstance(prompts.get("file"), str):
        data = {**data, "prompts": {**prompts, "file": str(path.absolute().parent / prompts["file"])}}
    return parse_study(data)


def study_link(spec: StudySpec) -> str:
    """The study as text for a link, prompts inside. Raises SpecError where it is too long for one."""
    return links.pack(spec.whole(spec.prompts.read()[0]).canonical(), "study")


def is_link(text: str) -> bool:
    """Whether a text is meant as a study's link, and as no file."""
    return text.startswith(f"{links.VERSION}.") and Path(text).suffix not in (".toml", ".json")


def study_of_link(text: str) -> StudySpec:
    """The study of a link. Raises SpecError for text that is none, and for one that names a file of this machine."""
    spec = parse_study(links.unpack(text, "study"))
    if spec.prompts.file is not None:
        raise SpecError("prompts: a link cannot name a file; ask for the study with its prompts inside.")
    return spec
