"""How a lane's stored codes are used, as its codecs count them."""

import torch
from torch import Tensor

from kvq_core.engine.cache import LaneCache, Part
from kvq_core.engine.lane_state import failure_line
from kvq_core.errors import MethodError
from kvq_core.methods import ModelShape


def usage_of(cache: LaneCache, shape: ModelShape) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """What ``Codec.usage`` gives of a lane, over all layers of the model, 0 where nothing is quantized; and a remark
    for each tensor whose codec gave no such thing: the lane has run, and what is shown beside it is left out."""
    found: dict[str, Tensor] = {}
    remarks: dict[str, None] = {}
    for part in cache.parts:
        layers = [cache.layers[part.group][i] for i in part.layers.tolist()]
        try:
            given = _sound(part, shape)
        except Exception as error:
            remarks[f"how {part.kind}s use their codes is not shown: {failure_line(error)}"] = None
            continue
        for name, values in given.items():
            name = f"{part.kind}_{name}"
            found[name] = _with_layers(found.get(name), values, layers, shape.layers)
    return found, tuple(remarks)


def _sound(part: Part, shape: ModelShape) -> dict[str, Tensor]:
    """Raises MethodError for a name or a shape that Codec.usage does not have, and for what is no number."""
    given = part.stream.usage()
    layers, heads = part.layers.numel(), shape.kv_heads
    shares = (layers, heads)
    shapes = {"symmetric_share": shares, "outlier_share": shares, "latent_bits": (layers, heads * shape.head_dim)}
    for name, values in given.items():
        if name not in ("code_counts", *shapes):
            raise MethodError(f"usage gave {name!r}, not one of code_counts, {', '.join(shapes)}")
        size = tuple(values.shape)
        counts = len(size) == 4 and size[0] == layers and size[1] in (1, heads)
        if not (counts if name == "code_counts" else size == shapes[name]):
            raise MethodError(f"usage gave {name} of shape {size} for {layers} layers and {heads} KV heads")
        if not torch.isfinite(values).all():
            raise MethodError(f"usage gave {name} that are NaN or infinite")
    return given


def _with_layers(whole: Tensor | None, values: Tensor, layers: list[int], every: int) -> Tensor:
    """Values of some layers (layers, ...) put among those of all; rules may count differently many things, and what
    one does not count is 0."""
    whole = values.new_zeros(every, *values.shape[1:]) if whole is None else whole
    size = [max(a, b) for a, b in zip(whole.shape[1:], values.shape[1:], strict=True)]
    larger = whole.new_zeros(every, *size)
    larger[tuple(slice(n) for n in whole.shape)] = whole
    inner = larger[tuple(slice(n) for n in (every, *values.shape[1:]))]
    inner[layers] = values
    return larger
