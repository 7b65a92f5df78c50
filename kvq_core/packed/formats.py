"""In what form a codec's tensors are held: groups of codes in a growing store, everything else in its own blocks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, singledispatch

from kvq_kernels import Grid, KernelError, Layout, PackedGroups, Path, Store, quantize_pack, squat_quantize
from kvq_kernels.grouped import Axis, Mode
from torch import Tensor

from kvq_core.errors import MethodError
from kvq_core.methods import Codec, Window
from kvq_core.methods.codec import GroupCodec
from kvq_core.methods.innerq import InnerCodec
from kvq_core.methods.squat import SquatKeyCodec
from kvq_core.methods.stream import Stream
from kvq_core.packed.reads import grid_of
from kvq_core.packed.sides import Side, StoreSide, StreamSide
from kvq_core.packed.turns import Turns

Encode = Callable[[Tensor, bool], PackedGroups]


@dataclass(frozen=True)
class Form:
    """Groups of codes as a store takes them: their layout, and what replaces plain rounding."""

    grid: Grid
    axis: Axis
    norms: Tensor | None = None
    encode: Encode | None = None


def side_of(codec: Codec | None, window: Window, x: Tensor, turns: Turns | None, path: Path, room: int = 0) -> Side:
    """Enter a prompt's x (rows, kv_heads, tokens, head_dim) float32, in the method's key space, into a packed cache.

    A store takes groups of codes whose tokens leave the window for good as they age: it grows in place and is what the
    fused attention reads. All other codecs keep the blocks a comparison's lane keeps.
    """
    aging = window.step is not None and not window.prompt_only and not window.rewritten
    form = form_of(codec, path) if codec is not None and aging else None
    if form is None:
        return StreamSide(Stream.of_prompt(x, window, codec), turns, path)
    assert window.step is not None
    layout = Layout(form.grid, form.axis, window.sink, window.recent, window.step)
    try:
        store = Store.empty(x, layout, room, form.norms, form.encode, path)
    except KernelError as error:
        raise MethodError(f"packed execution: {error}") from None
    store.fill(x)
    return StoreSide(store, turns, path)


@singledispatch
def form_of(codec: Codec, path: Path) -> Form | None:
    """A codec's groups of codes; None where it stores something else."""
    return None


@form_of.register
def _(codec: GroupCodec, path: Path) -> Form:
    return Form(grid_of(codec), codec.axis)


@form_of.register
def _(codec: SquatKeyCodec, path: Path) -> Form:
    grid, updates, block = grid_of(codec), codec.updates, codec.block
    return Form(grid, codec.axis, encode=lambda x, prompt: squat_quantize(x, updates, block, grid, path))


@form_of.register
def _(codec: InnerCodec, path: Path) -> Form:
    mixed = codec.mode == "hybrid_prefill"
    mode: Mode = "hybrid" if codec.mode == "hybrid_prefill" else codec.mode
    try:
        grid = Grid(codec.bits_per_code, codec.group_size, mode, codec.zero_point, codec.metadata)
    except KernelError as error:
        raise MethodError(f"packed execution: {error}") from None
    encode = partial(_hybrid_prompt, grid, codec.axis, path) if mixed else None
    return Form(grid, codec.axis, codec.shared.get("norms"), encode)


def _hybrid_prompt(grid: Grid, axis: Axis, path: Path, x: Tensor, prompt: bool) -> PackedGroups:
    """Hybrid groups for the prompt, symmetric ones afterwards, all told apart by the sign of the scale."""
    if prompt:
        return quantize_pack(x, grid, axis, path)
    only = Grid(grid.bits, grid.group_size, "symmetric", grid.zero_point, grid.scale)
    packed = quantize_pack(x, only, axis, path)
    return packed._replace(scales=-packed.scales)
