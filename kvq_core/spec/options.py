"""What a lane says beside its method and knobs: each option is declared here, and nowhere else.

A field's type and bounds are what is allowed, in files, links, the form and the API; its ``title`` and ``description``
are what the form, the command line and the documents show; the record has a field of its name. Its default is what a
lane does that does not say it: ids and links leave defaults out, so an option that comes changes none of them.
``words``: what a lane's subtitle says of a value; of others it says nothing.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, field_validator

from kvq_core.methods import KeySelection, selection_from
from kvq_core.spec.part import SpecPart
from kvq_core.spec.prefill import Reading, in_words

Tensors = Literal["both", "keys", "values"]
Count = Annotated[int, Field(ge=0)]
Numbers = Annotated[Literal["all"] | tuple[Count, ...], Field(examples=["all", [0, 1]])]
Centering = Literal["none", "mean", "bias", "mean_after_rope", "slow"]
Folding = Literal["none", "keys"]
Rotation = Literal["none", "hadamard", "signed"]

LABEL_CHARS = 60


class PlaceOptions(SpecPart):
    """Which part of the cache a method is for."""

    tensors: Tensors = Field(
        "both",
        title="Tensors",
        description="What it is for: both, keys or values; what no rule is for stays fp16.",
        json_schema_extra={"words": {"keys": "keys only", "values": "values only"}},
    )
    layers: Numbers = Field(
        "all",
        title="Layers",
        description='Layers it is for: "all", or numbers from 0, in the form such as 0, 1, 5-8; what no rule is for '
        "stays fp16.",
    )
    sliding: bool = Field(
        False,
        title="Windows, too",
        description="Whether it quantizes layers that attend to a window of tokens, too; without it they are fp16.",
    )
    sink_tokens: int | None = Field(
        None,
        ge=0,
        le=4096,
        title="First tokens kept",
        description="First tokens kept in fp16; null or empty: the method's own.",
    )
    recent_tokens: int | None = Field(
        None,
        ge=0,
        le=8192,
        title="Newest tokens kept",
        description="Newest tokens kept in fp16; null or empty: the method's own.",
    )


class CodecOptions(SpecPart):
    """What stands between tensors and their codec."""

    center: Centering = Field(
        "none",
        title="Centre keys",
        description="Quantize keys without a constant of each KV head and channel: the prompt's mean key before RoPE, "
        "the bias of the key projection, or the mean after RoPE, which loses what RoPE turns. A mean takes 2 bytes a "
        "channel; a bias is in the weights. slow: biases of RoPE pairs that turn by at most 1/32 rad over the context "
        "are left out of all keys and not added back.",
        json_schema_extra={
            "words": {
                "mean": "keys centred on their mean",
                "bias": "keys centred on the projection's bias",
                "mean_after_rope": "keys centred on their mean after RoPE",
                "slow": "slow key biases left out",
            }
        },
    )
    fold: Folding = Field(
        "none",
        title="Fold key scales",
        description="Divide keys by a scale of each KV head and RoPE pair before they are quantized, taken from the "
        "prompt's keys after centring, and multiply it back when they are read, as if it were folded into the query "
        "and key projections. 2 bytes a channel.",
        json_schema_extra={"words": {"keys": "keys folded"}},
    )
    rotate: Rotation = Field(
        "none",
        title="Rotate",
        description="Turn the channels of keys (after RoPE, centred before) and values by a Hadamard transform before "
        "they are quantized, and back when they are read; signed: after random signs of each layer and head. Nothing "
        "is stored for it.",
        json_schema_extra={"words": {"hadamard": "rotated", "signed": "rotated after random signs"}},
    )
    rotate_block: int | None = Field(
        None,
        ge=2,
        le=1024,
        title="Rotated block",
        description="Channels that rotate mixes, a power of two; null or empty: the largest that divides a head.",
    )


class RuleOptions(CodecOptions, PlaceOptions):
    """What every rule of a lane says; a lane of one rule says it itself."""


def _selection(given: Any) -> Any:
    return given if given is None or isinstance(given, KeySelection) else selection_from(given)


class LaneOptions(SpecPart):
    """What a lane says once, whatever its rules."""

    label: str = Field(
        "", max_length=LABEL_CHARS, title="Label", description="Name of the lane; empty: made from the method."
    )
    prefill: Reading = Field(
        "full",
        title="Prompt read",
        description="How the prompt is read: full, in full precision before anything is quantized, as papers do; "
        "deployed, as the method's first engine does; or in chunks through the lane's own cache: 512, 512 stored (a "
        "token is stored before it is read), 256 raw first_chunk (fitted on the first chunk).",
        examples=["full", "deployed", {"chunk": 512}],
    )
    select: Annotated[SerializeAsAny[KeySelection] | None, BeforeValidator(_selection)] = Field(
        None,
        title="Keys read",
        description="How the keys that a step reads are chosen, whatever stores them: an object of by (h2o, "
        "scissorhands, shadowkv, svdq) and its knobs; null, in the form all: every key is read, or those that the "
        "method chooses.",
    )

    @field_validator("label", mode="before")
    @classmethod
    def _one_line(cls, label: Any) -> Any:
        """Labels name lanes in tables and error messages: no line breaks, no blank that looks like no label."""
        return " ".join(label.split()) if isinstance(label, str) else label


LANE_OPTIONS = tuple(RuleOptions.model_fields)
READ_OPTIONS = tuple(name for name in LaneOptions.model_fields if name != "label")
_EXTRAS: dict[str, Any] = {name: field.json_schema_extra or {} for name, field in RuleOptions.model_fields.items()}
WORDS: dict[str, dict[str, str]] = {name: extra["words"] for name, extra in _EXTRAS.items() if "words" in extra}


def subtitle(lane: Any) -> dict[str, str]:
    """Of a lane, or the record of one: what it says beside its method, in words by option; of several rules, which say
    it themselves, how it reads the prompt alone."""
    said = {name: words[value] for name, words in WORDS.items() if (value := getattr(lane, name)) in words}
    read = in_words(lane.prefill)
    if read != "full":
        said["prefill"] = "prompt as deployed" if read == "deployed" else f"prompt in chunks, {read}"
    return said if len(lane.every_rule) == 1 else {name: said[name] for name in READ_OPTIONS if name in said}
