"""A format for the keys and one for the values of every layer, and the lane that stores so."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvq_core.errors import SpecError, excerpt
from kvq_core.methods import Method, ModelShape, make
from kvq_core.sizing.count import tensor_bytes
from kvq_core.spec import TENSORS, Lane, Tensor

FP16 = "fp16"
NOT_ALIKE = "some of its layers keep a window of tokens or a state, and layers are weighed where all keep all tokens"
TOKENS = 1024  # of the context that bytes are told for; those of formats without windows grow with it in proportion


@dataclass(frozen=True)
class Candidate:
    """A format that layers may be stored in: a method and its knobs, under the name it was given by."""

    name: str
    method: Method

    @classmethod
    def parse(cls, given: str) -> "Candidate":
        """``NAME`` or ``NAME:knob=value,knob=value``. Raises SpecError."""
        name, _, rest = given.strip().partition(":")
        knobs = dict(_knob(given, each) for each in rest.split(",")) if rest else {}
        return cls(given.strip(), make(name, **knobs))

    @classmethod
    def of(cls, method: Method) -> "Candidate":
        """A method under the name that ``parse`` reads."""
        knobs = method.model_dump(mode="json", exclude_defaults=True)
        told = ",".join(
            f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in knobs.items()
        )
        return cls(f"{method.name}:{told}" if told else method.name, method)

    @property
    def data(self) -> dict[str, Any]:
        """Its method and knobs as a rule has them."""
        knobs = self.method.model_dump(mode="json", exclude_defaults=True)
        return {"method": self.method.name, **({"knobs": knobs} if knobs else {})}

    def why_not(self, shape: ModelShape) -> str | None:
        """Why single layers of a model cannot be stored so; None where they can."""
        if not shape.uniform:
            return NOT_ALIKE
        if not self.method.quantizes:
            return "it quantizes nothing; fp16 is allowed anyway"
        if self.method.kept_layers(shape.layers):
            return "it keeps first and last layers itself; give boundary_layers=0"
        if self.method.spans_layers:
            return "it weighs layers against one another"
        return self.method.why_not(shape)

    def layer_bytes(self, tensor: Tensor, shape: ModelShape) -> int:
        """Of keys, or of values, of one layer and TOKENS tokens. Raises MethodError."""
        return tensor_bytes(Lane.model_validate(self.data), tensor, shape.kinds[0], TOKENS)


def _knob(given: str, told: str) -> tuple[str, Any]:
    name, equals, value = told.partition("=")
    if not equals:
        raise SpecError(f"format = {excerpt(given)} is not allowed; give NAME or NAME:knob=value,knob=value.")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value.strip()  # a word


@dataclass(frozen=True)
class LayerPlan:
    """Names of candidates by layer, FP16 among them."""

    keys: tuple[str, ...]
    values: tuple[str, ...]

    def of(self, tensor: Tensor) -> tuple[str, ...]:
        return self.keys if tensor == "keys" else self.values

    def lane(self, candidates: Sequence[Candidate], label: str = "", sliding: bool = False) -> Lane:
        """A rule for each format and the layers it is for; keys and values together where these are the same.
        ``sliding``: layers that attend to a window are stored so, too."""
        rules: list[dict[str, Any]] = []
        for each in candidates:
            keys, values = (tuple(n for n, name in enumerate(self.of(t)) if name == each.name) for t in TENSORS)
            apart = [("both", keys)] if keys == values else [("keys", keys), ("values", values)]
            whole = tuple(range(len(self.keys)))
            for tensor, layers in apart:
                if layers:
                    where = "all" if layers == whole else layers
                    rules.append({**each.data, "tensors": tensor, "layers": where, "sliding": sliding})
        if not rules:
            return Lane(label=label, method=FP16)
        return Lane.model_validate({"label": label, "rules": rules})

    @classmethod
    def uniform(cls, layers: int, key: str, value: str) -> "LayerPlan":
        return cls((key,) * layers, (value,) * layers)

    def with_ends(self, ends: int) -> "LayerPlan":
        """The same with the first and last layers in fp16."""

        def kept(names: tuple[str, ...]) -> tuple[str, ...]:
            last = len(names) - ends
            return tuple(FP16 if n < ends or n >= last else name for n, name in enumerate(names))

        return LayerPlan(kept(self.keys), kept(self.values))
