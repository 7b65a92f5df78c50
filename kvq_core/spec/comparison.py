"""A whole comparison, and what of it decides the result."""

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from kvq_core.errors import SpecError
from kvq_core.methods import make
from kvq_core.spec.conversation import Chat, Last, Message, Tool, check_conversation
from kvq_core.spec.lane import Lane
from kvq_core.spec.options import Count, Numbers
from kvq_core.spec.part import SpecPart
from kvq_core.spec.rule import Rule

DEFAULT_MODEL = "smollm2-135m-instruct-q4_1"
MAX_LANES = 64


class Capture(SpecPart):
    """What is kept for the drill-down views."""

    layers: Literal["auto", "all"] | tuple[Count, ...] = Field(
        "auto",
        description='Layers whose score maps are kept, "auto", "all" or a list from 0; auto: as many, evenly spaced, '
        "as 64 MB of arrays allow.",
        examples=["auto", "all", [0, 1]],
    )
    heads: Numbers = Field("all", description='Query heads whose score maps are kept, "all" or a list from 0.')
    detail: Literal["off", "normal", "deep"] = Field(
        "normal",
        title="Captures",
        description="off: no captures, only fidelity, memory and text; deep: attention at four times the steps, key "
        "distributions of all layers, at a higher cost.",
    )


class Stress(SpecPart):
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
        examples=[2, [0, 1]],
    )
    key_bias: float = Field(
        0.0,
        ge=-1024,
        le=1024,
        title="Key bias",
        description="Size of a constant added to a head's keys on its slowest pairs, in units of their rms. 0: none.",
    )
    layers: Numbers = Field("all", title="Layers", description='Stressed layers, "all" or a list from 0.')
    kv_heads: Numbers = Field("all", title="KV heads", description='Stressed KV heads, "all" or a list from 0.')

    @property
    def active(self) -> bool:
        """Whether it changes any key."""
        return (self.key_outlier_scale != 1 or self.key_bias != 0) and () not in (self.layers, self.kv_heads)


class ComparisonSpec(Chat):
    """One prompt, one model, up to 64 lanes. Frozen, validated and hashable; unknown fields are errors."""

    model: str = Field(
        DEFAULT_MODEL,
        min_length=1,
        max_length=400,
        description="Model id, path of a .gguf file or a model directory, or owner/repo:Q4_K_M of the Hub.",
    )
    revision: str | None = Field(None, max_length=100, description="Hub revision (branch, tag or commit).")
    reference: str | None = Field(
        None,
        min_length=1,
        max_length=400,
        description="Another file with the same tokenizer, named as a model: lanes follow what it answers in full "
        "precision and are scored against its logits; null: the model itself.",
    )
    system: str | None = Field(
        None, max_length=100_000, description='System message; null: the template\'s own, "": none.'
    )
    prompt: str = Field("", max_length=2_000_000, description="The user's prompt; empty where messages are given.")
    messages: tuple[Message, ...] | None = Field(
        None,
        max_length=1024,
        description="A conversation in place of prompt and system, oldest first; the model answers the last message.",
    )
    tools: tuple[Tool, ...] = Field((), max_length=128, description="Tools that the messages may call.")
    last: Last = None
    score_turns: Literal["last", "all"] = Field(
        "last",
        description="Which answers are scored: the generated one, or all: those of the assistant's messages as well.",
    )
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
    free_text: bool = Field(
        True, description="Let every lane write its own text as well; false: only the reference's tokens are followed."
    )
    floors: Literal["storage", "both"] = Field(
        "storage",
        description="What lanes are read against: an fp16 cache; both: also the reference computed as by another "
        "kernel, with bf16-sized rounding after every layer.",
    )
    score_prompt: Literal["auto", "all", "none"] = Field(
        "auto",
        description="Prompt tokens scored in lanes that read the prompt through their cache, after the first chunk; "
        "auto: all of up to 2,048 tokens, beyond that 64 at the end of each 1,024; none: the first new token alone.",
    )
    ignore_eos: bool = Field(False, description="Keep generating after the end-of-sequence token.")
    expect: str = Field(
        "", max_length=500, description="Text that a right answer holds; each answer gets a tick or a cross."
    )
    notes: str = Field("", max_length=10_000, description="Free text kept with the run.")

    @model_validator(mode="after")
    def _something_to_read(self) -> Self:
        if self.messages is None:
            if "prompt" not in self.model_fields_set:
                raise SpecError("prompt is missing. Give a prompt, or messages.")
            if not self.prompt.strip():
                raise SpecError("The prompt is empty; type one or pick a preset.")
            if self.tools:
                raise SpecError("tools are given without messages; give the conversation as messages.")
            if self.score_turns == "all":
                raise SpecError(
                    'score_turns = "all" is given without messages, and no given answers are there to score; give the '
                    "conversation as messages, or leave it out."
                )
            return self
        for name, given in (("prompt", self.prompt), ("system", self.system), ("chat = false", not self.chat)):
            if given:
                raise SpecError(f"messages and {name} are both given; put the text into a message, or leave one out.")
        check_conversation(self.messages, self.tools, self.last)
        return self

    @property
    def question(self) -> str:
        """What is asked, for people to recognize a run by: the prompt, or the user's last message."""
        asked = [message.content for message in self.messages or () if message.role == "user"]
        return asked[-1] if asked else self.prompt

    @field_validator("continuation")
    @classmethod
    def _continuation_given(cls, text: str | None) -> str | None:
        if text is not None and not text.strip():
            raise SpecError("The continuation is empty; give text to score, or leave it out to generate.")
        return text

    @model_validator(mode="after")
    def _label_lanes(self) -> Self:
        named = with_labels(self.lanes)
        object.__setattr__(self, "lanes", named)
        return self

    @model_validator(mode="after")
    def _scored_by_the_reference(self) -> Self:
        """Of another file's logits those are kept that choose its answer, and no others."""
        for name, scored in (("score_turns", self.score_turns == "all"), ("score_prompt", self.score_prompt == "all")):
            if self.reference is not None and scored:
                raise SpecError(
                    f'{name} = "all" and reference are both given: of a reference its answer\'s logits are kept alone. '
                    "Leave one of them out."
                )
        return self

    @model_validator(mode="after")
    def _exact_passes(self) -> Self:
        """A pass of several given tokens reads a window as it is at its end, and a lane that stores a token before it
        is read would see another one at each of them."""
        for lane in self.lanes if self.continuation is not None and self.score_chunk > 1 else ():
            if lane.chunks is not None and lane.chunks.own_chunk == "stored" and (kept := lane.newest_kept):
                raise SpecError(
                    f"score_chunk = {self.score_chunk}: {lane.label} stores a token before it is read and keeps the "
                    f"newest {kept} in full precision, which are others for each token of a pass; take "
                    "score_chunk = 1, or a lane that keeps none."
                )
        return self

    @property
    def forced_rows(self) -> int:
        """Rows beside the reference's that are fed its tokens: lanes and floors."""
        return len(self.lanes) + (2 if self.floors == "both" else 1)

    def canonical(self) -> str:
        """The spec as canonical JSON, defaults left out, so that a new field with a default keeps old ids."""
        return canonical_json(self.changed())

    def changed(self) -> dict[str, Any]:
        """The model, and what differs from the defaults, as plain data."""
        data = self.model_dump(mode="json", exclude_defaults=True)
        data["model"] = self.model
        if not self.stress.active:
            data.pop("stress", None)
        for told, lane in zip(data.get("lanes", []), self.lanes, strict=True):
            for said, rule in zip(told.get("rules", [told]), lane.every_rule, strict=True):
                _leave_out_defaults(said, rule)
        return data

    def __hash__(self) -> int:
        return int.from_bytes(hashlib.sha256(self.canonical().encode()).digest()[:8], "big")


def canonical_json(data: dict[str, Any]) -> str:
    """The same text for the same data."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _leave_out_defaults(said: dict[str, Any], rule: Rule) -> None:
    """A knob written out at its default is the same rule."""
    said.pop("knobs", None)
    if changed := make(rule.method, **rule.knobs).model_dump(mode="json", exclude_defaults=True):
        said["knobs"] = changed


def with_labels(lanes: Sequence[Lane], taken: Sequence[str] = ()) -> tuple[Lane, ...]:
    """Lanes whose labels differ from one another's and from those that are ``taken``: one without a label gets its
    default one, numbered. Raises SpecError for two that were given alike."""
    labels, named = list(taken), list[Lane]()
    for lane in lanes:
        base = lane.label or lane.default_label
        label, n = base, 2
        while label in labels:
            if lane.label:
                raise SpecError(f"Two lanes are labelled {base!r}; labels must differ.")
            label, n = f"{base} ({n})", n + 1
        labels.append(label)
        named.append(lane if lane.label == label else lane.model_copy(update={"label": label}))
    return tuple(named)
