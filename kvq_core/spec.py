"""ComparisonSpec: everything that decides a run, as written in files, links, the form and the API."""

import hashlib
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from kvq_core.complaints import first_line
from kvq_core.errors import PATH, SpecError, abbreviate, excerpt
from kvq_core.methods import Method, ModelShape, Window, make, methods

DEFAULT_MODEL = "smollm2-135m-instruct-q4_1"
MAX_LANES = 8
Count = Annotated[int, Field(ge=0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Lane(_Frozen):
    """One cache under one label: a method with its knobs, and where it applies."""

    label: str = Field("", max_length=60, description="Name of the lane; empty: made from the method.")
    method: str = Field(description="Name of the method.")
    knobs: dict[str, Any] = Field(default_factory=dict, description="The method's knobs; missing ones keep defaults.")
    tensors: Literal["both", "keys", "values"] = Field(
        "both", description="What the method quantizes; the rest is fp16."
    )
    layers: Literal["all"] | tuple[Count, ...] = Field(
        "all", description='Layers it quantizes, "all" or a list of numbers from 0; the others are fp16.'
    )
    sink_tokens: int | None = Field(None, ge=0, le=4096, description="First tokens kept fp16; null: the method's own.")
    recent_tokens: int | None = Field(
        None, ge=0, le=8192, description="Newest tokens kept fp16; null: the method's own."
    )

    @field_validator("label", mode="before")
    @classmethod
    def _one_line(cls, label: Any) -> Any:
        """Labels name lanes in tables and error messages: no line breaks, no blank that looks like no label."""
        return " ".join(label.split()) if isinstance(label, str) else label

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if isinstance(self.layers, tuple) and not self.layers:
            raise SpecError('layers = [] quantizes nothing; give layer numbers or "all".')
        built = self.build().model_dump(mode="json")
        # 2.0 or true given for a whole number is that number from here on, in the record as in the run's id
        object.__setattr__(self, "knobs", {name: built[name] for name in self.knobs})
        return self

    def build(self) -> Method:
        """The frozen method, lane options applied to the knobs that mean the same.

        Raises SpecError for an unknown method, an impossible knob, or an option given twice.
        """
        settings = dict(self.knobs)
        for option, knob in self._options():
            if knob is None:
                continue
            if knob in self.knobs:
                raise SpecError(f"{option} is given by the lane and by the knob {knob!r}; give one of them.")
            settings[knob] = getattr(self, option)
        built = make(self.method, **settings)
        if not built.quantizes and (self.sink_tokens is not None or self.recent_tokens is not None):
            raise SpecError(f"{self.method} quantizes nothing: sink_tokens and recent_tokens have no meaning here.")
        return built

    def windows(self) -> tuple[Window, Window]:
        """Windows of keys and of values after the lane's options."""
        built = self.build()
        changes = {
            option.removesuffix("_tokens"): getattr(self, option) for option, knob in self._options() if knob is None
        }
        key, value = (_changed(window, changes) for window in built.windows())
        whole = Window(step=None)
        return (whole if self.tensors == "values" else key), (whole if self.tensors == "keys" else value)

    def _options(self) -> list[tuple[str, str | None]]:
        """Lane options that are set, each with the method's knob of the same meaning, if it has one."""
        if self.method not in methods():
            make(self.method)
        knobs = methods()[self.method].window_knobs()
        given = [o for o in ("sink_tokens", "recent_tokens") if getattr(self, o) is not None]
        return [(option, knobs.get(option)) for option in given]

    def why_not(self, shape: ModelShape) -> str | None:
        """Why this lane cannot run on a model of this shape; None when it can."""
        if isinstance(self.layers, tuple) and max(self.layers) >= shape.layers:
            return f"layer {excerpt(max(self.layers))} does not exist; the model has layers 0 to {shape.layers - 1}"
        method = self.build()
        pre = method.key_space == "pre" and method.quantizes
        return (shape.not_before_rope(self.layers) if pre else None) or method.why_not(shape)


def _changed(window: Window, changes: dict[str, Any]) -> Window:
    return replace(window, **changes) if window.step is not None else window


class Capture(_Frozen):
    """What is kept for the drill-down views."""

    layers: Literal["auto", "all"] | tuple[Count, ...] = Field(
        "auto",
        description='Layers whose score maps are kept, "auto", "all" or a list from 0; auto: as many, evenly spaced, '
        "as 64 MB of arrays allow.",
    )
    heads: Literal["all"] | tuple[Count, ...] = Field(
        "all", description='Query heads whose score maps are kept, "all" or a list from 0.'
    )
    detail: Literal["off", "normal", "deep"] = Field(
        "normal",
        title="Captures",
        description="off: no captures, only fidelity, memory and text; deep: attention at four times the steps, key "
        "distributions of all layers, at a higher cost.",
    )


class Stress(_Frozen):
    """Function-preserving stress: the cache becomes harder to quantize, full-precision attention stays what it was."""

    key_outlier_scale: float = Field(
        1.0,
        ge=0.001,
        le=1024,
        title="Key outlier scale",
        description="Factor of chosen channel pairs of the keys; queries get its inverse. 1: none.",
    )
    key_outlier_pairs: Annotated[int, Field(ge=1, le=1024)] | Annotated[tuple[Count, ...], Field(min_length=1)] = Field(
        2,
        title="Outlier pairs",
        description="How many pairs (i, i + head_dim/2) of each head, largest first, or a list of pairs from 0.",
    )
    key_bias: float = Field(
        0.0,
        ge=-1024,
        le=1024,
        title="Key bias",
        description="Size of a constant added to a head's keys on its slowest pairs, in units of their rms. 0: none.",
    )
    layers: Literal["all"] | tuple[Count, ...] = Field(
        "all", title="Layers", description='Stressed layers, "all" or a list from 0.'
    )
    kv_heads: Literal["all"] | tuple[Count, ...] = Field(
        "all", title="KV heads", description='Stressed KV heads, "all" or a list from 0.'
    )

    @property
    def active(self) -> bool:
        """Whether it changes any key."""
        return (self.key_outlier_scale != 1 or self.key_bias != 0) and () not in (self.layers, self.kv_heads)


class ComparisonSpec(_Frozen):
    """One prompt, one model, up to eight lanes. Frozen, validated and hashable; unknown fields are errors."""

    model: str = Field(
        DEFAULT_MODEL,
        min_length=1,
        max_length=400,
        description="Model id, path of a .gguf file or a model directory, or owner/repo:Q4_K_M of the Hub.",
    )
    revision: str | None = Field(None, max_length=100, description="Hub revision (branch, tag or commit).")
    system: str | None = Field(
        None, max_length=100_000, description='System message; null: the template\'s own, "": none.'
    )
    prompt: str = Field(max_length=2_000_000, description="The user's prompt.")
    chat: bool = Field(True, description="Apply the model's chat template; false: the raw text.")
    continuation: str | None = Field(
        None, max_length=2_000_000, description="Text to score through the caches instead of generating."
    )
    max_new_tokens: int = Field(64, ge=1, le=2048, description="Tokens to generate at most.")
    temperature: float = Field(0.0, ge=0, le=5, description="0: greedy.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of every row's sampling; rows share their random numbers.")
    score_chunk: int = Field(1, ge=1, le=512, description="Continuation tokens a forward pass; 1 is exactly decoding.")
    lanes: tuple[Lane, ...] = Field((), max_length=MAX_LANES, description="The quantized caches to compare.")
    capture: Capture = Capture()
    stress: Stress = Stress()
    ignore_eos: bool = Field(False, description="Keep generating after the end-of-sequence token.")
    expect: str = Field(
        "", max_length=500, description="Text that a right answer holds; each answer gets a tick or a cross."
    )
    notes: str = Field("", max_length=10_000, description="Free text kept with the run.")

    @field_validator("prompt")
    @classmethod
    def _prompt_given(cls, prompt: str) -> str:
        if not prompt.strip():
            raise SpecError("The prompt is empty; type one or pick a preset.")
        return prompt

    @field_validator("continuation")
    @classmethod
    def _continuation_given(cls, text: str | None) -> str | None:
        if text is not None and not text.strip():
            raise SpecError("The continuation is empty; give text to score, or leave it out to generate.")
        return text

    @model_validator(mode="after")
    def _label_lanes(self) -> Self:
        labels: list[str] = []
        for lane in self.lanes:
            base = lane.label or methods()[lane.method].title
            label, n = base, 2
            while label in labels:
                if lane.label:
                    raise SpecError(f"Two lanes are labelled {base!r}; labels must differ.")
                label, n = f"{base} ({n})", n + 1
            labels.append(label)
        named = tuple(
            lane if lane.label == label else lane.model_copy(update={"label": label})
            for lane, label in zip(self.lanes, labels, strict=True)
        )
        object.__setattr__(self, "lanes", named)
        return self

    def canonical(self) -> str:
        """The spec as canonical JSON, defaults left out, so that a new field with a default keeps old ids."""
        data = self.model_dump(mode="json", exclude_defaults=True)
        data["model"] = self.model
        if not self.stress.active:
            data.pop("stress", None)
        for told, lane in zip(data.get("lanes", []), self.lanes, strict=True):
            # a knob written out at its default is the same lane
            told.pop("knobs", None)
            if changed := make(lane.method, **lane.knobs).model_dump(mode="json", exclude_defaults=True):
                told["knobs"] = changed
        return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def __hash__(self) -> int:
        return int.from_bytes(hashlib.sha256(self.canonical().encode()).digest()[:8], "big")


def parse_spec(data: Any) -> ComparisonSpec:
    """A spec from plain data (parsed JSON or TOML, a form, a link).

    Raises SpecError with one line: the place, what was given, what is allowed.
    """
    if not isinstance(data, dict):
        raise SpecError(f"A comparison is an object with fields such as prompt and lanes, not {type(data).__name__}.")
    lanes = data.get("lanes")
    if isinstance(lanes, list | tuple) and len(lanes) > MAX_LANES:
        raise SpecError(
            f"{len(lanes)} lanes were given; at most {MAX_LANES} are allowed. Remove {len(lanes) - MAX_LANES}."
        )
    if isinstance(lanes, list | tuple):
        for number, lane in enumerate(lanes, 1):
            parse_lane(lane, _lane_name(number, lane))
    try:
        return ComparisonSpec.model_validate(data)
    except ValidationError as error:
        raise SpecError(first_line(error, ComparisonSpec)) from None


def parse_lane(data: Any, name: str = "") -> Lane:
    """A lane from plain data. Raises SpecError with one line, which begins with the lane's ``name``."""
    try:
        return Lane.model_validate(data)
    except SpecError as error:
        raise SpecError(f"{name}: {error}" if name else str(error)) from None
    except ValidationError as error:
        raise SpecError(first_line(error, Lane, name)) from None


def _lane_name(number: int, lane: Any) -> str:
    """``lane 2 (SQuat)``: its label, or its method's title."""
    given = lane if isinstance(lane, dict) else {}
    known = methods().get(given["method"]) if isinstance(given.get("method"), str) else None
    label = given.get("label") or (known.title if known else "")
    return f"lane {number} ({label[:60]})" if label and isinstance(label, str) else f"lane {number}"


def read_spec(path: Path) -> ComparisonSpec:
    """A spec from a ``.toml`` or ``.json`` file.

    Raises SpecError when the file is missing, unreadable or says something impossible.
    """
    try:
        raw = path.read_bytes()
        data = tomllib.loads(raw.decode()) if path.suffix == ".toml" else json.loads(raw)
    except OSError as error:
        raise SpecError(f"Cannot read {abbreviate(str(path), PATH)}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        kind, reason = "TOML" if path.suffix == ".toml" else "JSON", abbreviate(str(error))
        raise SpecError(f"{path.name} is not valid {kind}: {reason}.") from None
    return parse_spec(data)
