"""A method's cache of a sample's prompt, all layers at once, read back as attention would read it."""

from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from kvq_core.claims.sample import Sample
from kvq_core.claims.texts import Text
from kvq_core.codecs.stream import Stream
from kvq_core.errors import MethodError
from kvq_core.frozen import Frozen
from kvq_core.methods import Prompt, Window
from kvq_core.spec import Lane


class ClaimLane(Frozen):
    """A lane of a claim, as its data says it."""

    method: str
    knobs: dict[str, Any] = Field(default_factory=dict)
    tensors: Literal["both", "keys", "values"] = "both"
    windows: bool = False  # True: keep the method's full-precision windows; False: every prompt token is quantized
    keys: Literal["own", "pre"] = "own"  # pre: keys before RoPE, whatever the method's own space is
    subspace: Literal["own"] | Text = "own"  # whose queries the method is fitted on: the prompt's or another text's

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.subspace != "own" and not self.lane().build().needs_queries:
            raise ValueError(f"{self.method} reads no queries; subspace is for methods that do")
        self.lane()
        return self

    def lane(self) -> Lane:
        """Raises SpecError for an unknown method or an impossible knob."""
        return Lane(method=self.method, knobs=self.knobs, tensors=self.tensors)


@dataclass(frozen=True)
class ReadBack:
    """keys, values (layers, kv_heads, prompt, head_dim) float32, keys after RoPE; ``nbytes`` held, by part."""

    keys: Tensor
    values: Tensor
    nbytes: dict[str, int]

    def bits(self, kind: Literal["key", "value"]) -> float:
        """Stored bits per element, metadata included."""
        size = sum(n for name, n in self.nbytes.items() if name.startswith(kind + "_"))
        return 8 * size / self.keys.numel()


def read_back(sample: Sample, wanted: ClaimLane, other: Sample | None = None) -> ReadBack:
    """Encode a sample's prompt as a lane of a run would (fp16 metadata), and decode it. The queries a method is fitted
    on are the prompt's, or those of ``other``'s prompt.

    Raises MethodError where the method cannot run on the model, or lacks its codebooks.
    """
    lane, n = wanted.lane(), sample.prompt
    method = lane.build()
    if reason := lane.why_not(sample.model.shape):
        raise MethodError(f"{method.title} cannot run on {sample.model.title}: {reason}.")
    pre = method.quantizes and "pre" in (wanted.keys, method.key_space)
    keys = (sample.keys_before_rope if pre else sample.keys)[..., :n, :]
    values = sample.values[..., :n, :]
    asked = other or sample
    queries = asked.queries[..., : asked.prompt, :] if method.needs_queries else None
    gram = asked.prompt_gram if method.needs_queries else None
    prompt = Prompt(
        keys,
        values,
        queries,
        torch.float16,
        gram,
        sample.model.ref,
        tuple(range(sample.layers)),
        scaling=sample.model.shape.scaling,
    )
    fitted = method.fit(prompt)
    kept = [w if wanted.windows or w.step is None else Window(step=1) for w in lane.windows()]
    key, value = Stream.of_prompt(keys, kept[0], fitted.key), Stream.of_prompt(values, kept[1], fitted.value)
    read = sample.rope.rotate(key.decode(), 0) if pre else key.decode()
    nbytes = {f"{kind}_{name}": n for kind, s in (("key", key), ("value", value)) for name, n in s.nbytes().items()}
    return ReadBack(read, value.decode(), nbytes)
