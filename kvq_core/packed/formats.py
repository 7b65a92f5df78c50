"""Which codecs can be held packed for the fused operations, and in what layout."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, singledispatch

from kvq_kernels import Grid, KernelError, Layout, PackedGroups, Path, quantize_pack, squat_quantize
from kvq_kernels.grouped import Axis, Mode
from torch import Tensor

from kvq_core.errors import MethodError
from kvq_core.methods import Codec, Window
from kvq_core.methods.codec import GroupCodec
from kvq_core.methods.innerq import InnerCodec
from kvq_core.methods.squat import SquatKeyCodec

Encode = Callable[[Tensor, bool], PackedGroups]


@dataclass(frozen=True)
class Form:
    """A codec as the fused operations see it: the layout of its store, and what replaces plain rounding."""

    layout: Layout
    norms: Tensor | None = None
    encode: Encode | None = None


@singledispatch
def form_of(codec: Codec, window: Window, path: Path) -> Form:
    """The packed form of a codec fitted on a prompt whose batch takes the place of the layers.

    Raises MethodError for codecs and windows the fused operations cannot read.
    """
    raise MethodError(
        f"{type(codec).__name__} has no packed execution; methods whose keys and values are groups of codes do, "
        "such as kivi, squat, innerq and per_token."
    )


@form_of.register
def _(codec: GroupCodec, window: Window, path: Path) -> Form:
    grid = Grid(codec.bits_per_code, codec.group_size, "asymmetric", codec.metadata, codec.metadata)
    return Form(_layout(grid, codec.axis, window))


@form_of.register
def _(codec: SquatKeyCodec, window: Window, path: Path) -> Form:
    plain = form_of.dispatch(GroupCodec)(codec, window, path)
    grid, updates, block = plain.layout.grid, codec.updates, codec.block
    return Form(plain.layout, encode=lambda x, prompt: squat_quantize(x, updates, block, grid, path))


@form_of.register
def _(codec: InnerCodec, window: Window, path: Path) -> Form:
    mixed = codec.mode == "hybrid_prefill"
    mode: Mode = "hybrid" if codec.mode == "hybrid_prefill" else codec.mode
    try:
        grid = Grid(codec.bits_per_code, codec.group_size, mode, codec.zero_point, codec.metadata)
    except KernelError as error:
        raise MethodError(f"packed execution: {error}") from None
    encode = partial(_hybrid_prompt, grid, codec.axis, path) if mixed else None
    return Form(_layout(grid, codec.axis, window), codec.shared.get("norms"), encode)


def _hybrid_prompt(grid: Grid, axis: Axis, path: Path, x: Tensor, prompt: bool) -> PackedGroups:
    """Hybrid groups for the prompt, symmetric ones afterwards, all told apart by the sign of the scale."""
    if prompt:
        return quantize_pack(x, grid, axis, path)
    only = Grid(grid.bits, grid.group_size, "symmetric", grid.zero_point, grid.scale)
    packed = quantize_pack(x, only, axis, path)
    return packed._replace(scales=-packed.scales)


def _layout(grid: Grid, axis: Axis, window: Window) -> Layout:
    if window.step is None or window.prompt_only or window.rewritten:
        raise MethodError("packed execution needs a cache whose tokens leave the window for good as they age.")
    if axis == "tokens" and window.step % grid.group_size:
        raise MethodError(
            f"packed execution: a window step of {window.step} splits groups of {grid.group_size} tokens."
        )
    return Layout(grid, axis, window.sink, window.recent, window.step)
