"""A packed layer's constant and rotation, which its tensors are stored behind as those of a comparison's lane are."""

from dataclasses import dataclass, replace

from torch import Tensor

from kvq_core.codecs.center import Center
from kvq_core.codecs.hadamard import Hadamard
from kvq_core.engine.centering import center_of, center_prompt
from kvq_core.engine.rotation import rotate_prompt, rotation_of
from kvq_core.methods import Prompt
from kvq_core.packed.rope_tables import RopeTables
from kvq_core.spec import Centering, Rotation, Transforms


@dataclass(frozen=True)
class Transform:
    """Of one layer's prompt, whose rows stand where layers do in a comparison."""

    center: Center | None = None
    rotation: Hadamard | None = None

    def of_row(self, row: int) -> Hadamard | None:
        """What turns a row."""
        return None if self.rotation is None else self.rotation.on(row)


@dataclass(frozen=True)
class TransformOptions:
    """What a rule asks for. ``turns``: the layer's RoPE, on whose other side a constant may be taken; ``bias``
    (kv_heads, head_dim) of its key projection."""

    center: Centering = "none"
    rotation: tuple[Rotation, int | None] = ("none", None)
    turns: RopeTables | None = None
    bias: Tensor | None = None

    @classmethod
    def of(cls, asked: Transforms) -> "TransformOptions":
        """A rule's own, which are none of ``slow`` and ``fold``."""
        return cls(asked.center, (asked.rotate, asked.rotate_block))

    @property
    def named(self) -> str | None:
        """The options as they are written; None where there are none."""
        said = {"center": self.center, "rotate": self.rotation[0]}
        return " and ".join(f"{name} = {how}" for name, how in said.items() if how != "none") or None

    def before(self, prompt: Prompt, pre: bool) -> tuple[Prompt, Transform]:
        """What the method is fitted on, and what leads to it; ``pre``: keys are stored before RoPE."""
        center = None
        if self.turns is not None:
            bias = None if self.bias is None else self.bias.expand(len(prompt.keys), -1, -1)
            center = center_of(self.center, prompt, self.turns, pre, bias)
        rotation = rotation_of(*self.rotation, prompt)
        return rotate_prompt(center_prompt(prompt, center), rotation, keys=not pre), Transform(center, rotation)

    def on(self, turns: RopeTables, bias: Tensor | None) -> "TransformOptions":
        """Of a layer that is centred."""
        return replace(self, turns=turns, bias=bias)
