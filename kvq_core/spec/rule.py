"""One rule of a lane: a method with its knobs, and what of the cache it is for."""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from kvq_core.errors import SpecError, excerpt
from kvq_core.methods import Method, ModelShape, Window, make, methods
from kvq_core.spec.layers import layer_words
from kvq_core.spec.options import Count, RuleOptions
from kvq_core.spec.part import SpecPart
from kvq_core.spec.transforms import Transforms

Tensor = Literal["keys", "values"]
Spans = tuple[tuple[Count, Count], ...]
Tier = Literal["all", "first", "last", "spans"]

TENSORS: tuple[Tensor, Tensor] = ("keys", "values")
_ONLY_WINDOWS = "every layer of this model attends to a window of tokens; set sliding = true to quantize them"
_TOKENS = re.compile(r"all|(first|last):[1-9][0-9]{0,6}")


class _Stored(SpecPart):
    method: str | None = Field(None, description="Name of the method.")
    knobs: dict[str, Any] = Field(default_factory=dict, description="The method's knobs; missing ones keep defaults.")


class Storing(RuleOptions, _Stored):
    """How some of a cache is stored: what a rule and the short form of a lane both say."""


class Rule(Storing):
    """A method for some tensors, layers and tokens. Of a lane's rules the first that fits a place is used there."""

    method: str = Field(description="Name of the method.")
    tokens: str | Spans = Field(
        "all",
        title="Tokens",
        description='Tokens it is for: "all", "first:n", "last:n", or spans of the prompt such as [[40, 60]], in the '
        "form 40-60, 80-90, kept beside what a later rule stores.",
        examples=["all", "first:4", "last:128", [[40, 60]]],
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if isinstance(self.layers, tuple) and not self.layers:
            raise SpecError('layers = [] quantizes nothing; give layer numbers or "all".')
        if isinstance(self.layers, tuple) and len(set(self.layers)) < len(self.layers):
            raise SpecError(f"layers = {excerpt(list(self.layers))} name a layer twice; give each once.")
        self._check_tokens()
        self.transforms.check(self.build(), self.quantizes("keys"), self.quantizes("values"))
        if self.build().selection is not None and (self.tensors != "both" or self.tokens != "all"):
            raise SpecError(f"{self.method} chooses tokens, with their keys and values; leave tensors and tokens out.")
        built = self.build().model_dump(mode="json")
        # 2.0 given for a whole number is that number from here on, in the record as in the run's id
        object.__setattr__(self, "knobs", {name: built[name] for name in self.knobs})
        return self

    def _check_tokens(self) -> None:
        """Raises SpecError where ``tokens`` is no such text or span, or none that is stored apart yet."""
        if isinstance(self.tokens, str):
            well = _TOKENS.fullmatch(self.tokens) is not None
        else:
            well = bool(self.tokens) and all(start < end for start, end in self.tokens)
        if not well:
            raise SpecError(
                f'tokens = {excerpt(self.tokens)} is not allowed; give "all", "first:n", "last:n" or spans such as '
                "[[40, 60]]."
            )
        if any(b > a for (_, b), (a, _) in pairwise(self.spans)):
            raise SpecError(f"tokens = {excerpt(self.tokens)}: spans come in order and do not overlap.")

    @property
    def spans(self) -> Spans:
        """Spans of the prompt [start, end) it is for; none where it is for others."""
        return () if isinstance(self.tokens, str) else self.tokens

    @property
    def tier(self) -> tuple[Tier, int]:
        """Which tokens it is for, and how many these are; of all none is told."""
        if not isinstance(self.tokens, str):
            return "spans", sum(end - start for start, end in self.tokens)
        kind, _, count = self.tokens.partition(":")
        return ("first" if kind == "first" else "last", int(count)) if count else ("all", 0)

    def with_options(self, **options: int) -> "Rule":
        """This rule with ``sink_tokens`` or ``recent_tokens`` in place of its own, be they options or knobs.

        Raises SpecError where the method cannot have them.
        """
        if not options:
            return self
        meant = methods()[self.method].window_knobs()
        own = {meant.get(option) for option in options}
        knobs = {name: value for name, value in self.knobs.items() if name not in own}
        given = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**given, "knobs": knobs, **options})

    def build(self) -> Method:
        """The frozen method, options applied to the knobs that mean the same.

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
        """Windows of keys and of values after the rule's options."""
        built = self.build()
        changes = {
            option.removesuffix("_tokens"): getattr(self, option) for option, knob in self._options() if knob is None
        }
        key, value = (_changed(window, changes) for window in built.windows())
        whole = Window(step=None)
        return (whole if self.tensors == "values" else key), (whole if self.tensors == "keys" else value)

    def covers(self, tensor: Tensor) -> bool:
        """Whether the rule is for keys, or for values."""
        return self.tensors in ("both", tensor)

    def quantizes(self, tensor: Tensor) -> bool:
        """Whether any token of keys, or of values, ever leaves full precision by this rule."""
        window = self.windows()[TENSORS.index(tensor)]
        return self.covers(tensor) and window.step is not None and self.build().quantizes

    @property
    def transforms(self) -> Transforms:
        """What stands between its tensors and the codec."""
        return Transforms(**{name: getattr(self, name) for name in Transforms.model_fields})

    def missing_layer(self, shape: ModelShape) -> str | None:
        """Which layer it names that the model has not, or that it cannot quantize; None where all are there."""
        if isinstance(self.layers, str):
            return None if shape.full or self.sliding or not self.build().quantizes else _ONLY_WINDOWS
        if max(self.layers) >= shape.layers:
            return f"layer {excerpt(max(self.layers))} does not exist; the model has layers 0 to {shape.layers - 1}"
        if keyless := set(self.layers) - set(shape.keyed):
            holders = [held for layer in keyless if (held := shape.kinds[layer].reads) is not None]
            read = f" and reads those of {layer_words(holders)}" if holders else ""
            return f"{layer_words(keyless)} of this model holds no keys and values{read}; name others"
        if not self.sliding and (windowed := set(self.layers) & set(shape.windowed)):
            named = layer_words(windowed)
            return f"{named} of this model attends to a window of tokens; set sliding = true, or name others"
        return None

    def why_not(self, shape: ModelShape) -> str | None:
        """Why this rule cannot run on a model of this shape; None when it can."""
        if missing := self.missing_layer(shape):
            return missing
        method = self.build()
        lost = None
        if method.key_space == "pre" and method.quantizes:
            lost = shape.not_before_rope(self.layers, "a method that stores keys after RoPE")
        if lost := lost or self.transforms.why_not(shape, self.layers):
            return lost
        shapes = shape.by_heads(shape.keyed if self.sliding else shape.full)
        reasons = (self.transforms.head_not_rotated(own.head_dim) or method.why_not(own) for own in shapes)
        return next(filter(None, reasons), None) or (None if shape.stateful else method.keeps_all(shape.layers))

    def not_chunked(self, own_chunk: str) -> str | None:
        """Why a prompt cannot enter in chunks what this rule stores, on any model; None where it can."""
        method = self.build()
        if own_chunk == "raw" or method.not_chunked:
            return method.not_chunked
        for tensor, local in zip(TENSORS, method.token_local, strict=True):
            if self.quantizes(tensor) and not local:
                return (
                    f"own_chunk = stored needs codes that a token has by itself, and {method.title} codes {tensor} of "
                    "several tokens together; take own_chunk = raw, or a method that quantizes per token"
                )
        return None

    def tier_not_chunked(self, own_chunk: str) -> str | None:
        """Why a prompt cannot enter in chunks the tokens it is for; None where it can."""
        if self.tier[0] == "spans":
            return "spans are kept beside a prompt that is known as a whole; take prefill = full"
        if self.tier[0] == "all" or own_chunk == "raw" or not self.build().quantizes:
            return None
        return (
            f"own_chunk = stored reads the tokens of a chunk as one rule stores them, and tokens = {self.tokens} are "
            "quantized by another; take own_chunk = raw, or fp16 there"
        )

    def named(self) -> str:
        """What it is for and how that is stored, in a few words: ``K kivi 2 centred rotated``, ``layers 0-3 fp16``."""
        tensor = {"both": "", "keys": "K ", "values": "V "}[self.tensors]
        layers = "" if isinstance(self.layers, str) else f"{layer_words(self.layers)} "
        kind, count = self.tier
        tokens = {"all": "", "spans": f"{count} tokens of spans "}.get(kind, f"{kind} {count} ")
        return f"{layers}{tokens}{tensor}{self.build().short(self.tensors)}{self.transforms.named}"

    def _options(self) -> list[tuple[str, str | None]]:
        """Options that are set, each with the method's knob of the same meaning, if it has one."""
        if self.method not in methods():
            make(self.method)
        knobs = methods()[self.method].window_knobs()
        given = [o for o in ("sink_tokens", "recent_tokens") if getattr(self, o) is not None]
        return [(option, knobs.get(option)) for option in given]


def _changed(window: Window, changes: dict[str, Any]) -> Window:
    return replace(window, **changes) if window.step is not None else window
