"""A cache format as the check runs it: every token of keys and values stored by itself, the newest included."""

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from kvq_core.codecs.codec import Codec
from kvq_core.codecs.queries import QueryRounding
from kvq_core.errors import SpecError, excerpt
from kvq_core.methods import Method, ModelRef, Prompt, make, methods
from kvq_core.methods.formats.tokenwise import Format
from kvq_core.models import LoadedModel

FULL = ("f32", "f16", "bf16", "fp16")


@dataclass(frozen=True)
class CacheFormat:
    """Methods of keys and of values; None: in full precision."""

    keys: Method | None
    values: Method | None

    @classmethod
    def of(cls, words: str) -> Self:
        """``q4_0/q8_0``, or one name for both. Raises SpecError for a format that mending has nothing to give."""
        keys, _, values = words.strip().lower().partition("/")
        made = cls(_method(keys), _method(values or keys))
        if made.keys is None:
            raise SpecError(f"--for {excerpt(words)} keeps keys in full precision: there is nothing to gain.")
        return made

    def __str__(self) -> str:
        return "/".join("f16" if method is None else method.name for method in (self.keys, self.values))

    def check(self, model: LoadedModel) -> None:
        """Raises SpecError where it cannot hold a model's keys or values."""
        for method in filter(None, (self.keys, self.values)):
            if reason := method.why_not(model.shape):
                raise SpecError(f"--for {method.name} cannot run on {model.title}: {reason}.")

    def rounding(self, ref: ModelRef) -> QueryRounding | None:
        """How queries are rounded before they meet its keys."""
        return None if self.keys is None else self.keys.query_rounding(ref)

    def stored(self, ref: ModelRef, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (kv_heads, tokens, head_dim) of a layer as they are read once they are stored."""
        return _through(self.keys, 0, ref, layer, keys, values), _through(self.values, 1, ref, layer, keys, values)


def _through(method: Method | None, which: int, ref: ModelRef, layer: int, keys: Tensor, values: Tensor) -> Tensor:
    x = (keys, values)[which][None].float()
    if method is None:
        return x[0]
    fitted = method.fit(Prompt(keys[None].float(), values[None].float(), None, model=ref, layers=(layer,)))
    codec: Codec | None = (fitted.key, fitted.value)[which]
    assert codec is not None, "a format stores every token"
    return codec.decode(codec.encode(x, 0))[0]


def _method(name: str) -> Method | None:
    if name in FULL:
        return None
    known = methods()
    offered = ", ".join(sorted(each for each, kind in known.items() if issubclass(kind, Format)))
    if name not in known:
        raise SpecError(f"--for {excerpt(name)} is no format; give one of {offered}, or K/V such as q8_0/q4_0.")
    kind = known[name]
    if kind.scales[0] == "tokens":
        raise SpecError(
            f"--for {name}: its keys are quantized by channel, where constants cost nothing: there is nothing to gain."
        )
    method = make(name)
    if not issubclass(kind, Format) or method.needs_queries or method.key_space != "post":
        raise SpecError(f"--for {name} does not store every token by itself; give one of {offered}.")
    return method
