"""2-bit codes of clipped rows behind a rotation of their layer: the store of OSCAR."""

from dataclasses import dataclass, field, replace

import torch
from kvq_kernels import pack, unpack
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import of_layer
from kvq_core.methods.formats.tokenwise import TokenCodec

BITS, LAST, LEAST_RANGE = 2, 3, 1e-8
THRESHOLD, SPAN, WIDER = 0.9810652732849121, 2 * 1.5095585584640503, 1.16  # of the engine's Lloyd-Max path


@dataclass(frozen=True)
class RotatedInt2(TokenCodec):
    """2-bit codes of a token and head over its whole range, clipped: magnitudes above that of rank ``clip`` * head_dim
    become it. Codes of channels i, i + d/4, i + d/2, i + 3d/4 share a byte (oscar_rotation_clip_int2_kv.py).

    ``shared["rotation"]`` (layers, head_dim, head_dim) float32 is what rows are multiplied with, or ``kept``, which
    belongs to the model; without either ``turn``.
    """

    clip: float = 1.0
    lloyd_max: bool = False
    dtype: torch.dtype = torch.float16
    shared: dict[str, Tensor] = field(default_factory=dict)
    kept: Tensor | None = None

    @property
    def model_bytes(self) -> int:
        return 0 if self.kept is None else self.kept.nbytes

    @property
    def rotation(self) -> Tensor | None:
        """(layers, 1, head_dim, head_dim), for all heads of a layer."""
        found = self.shared.get("rotation", self.kept)
        return None if found is None else found[:, None]

    def encode(self, x: Tensor, start: int) -> Block:
        return super().encode(x if self.rotation is None else x.float() @ self.rotation, start)

    def decode(self, block: Block) -> Tensor:
        found = super().decode(block)
        return found if self.rotation is None else found @ self.rotation.mT

    def preview(self, x: Tensor, layer: int, start: int) -> Tensor:
        kept = None if self.kept is None else self.kept[layer : layer + 1]
        own = replace(self, shared=of_layer(self.shared, layer), kept=kept)
        return own.decode(own.encode(x, start))

    def store(self, x: Tensor) -> dict[str, Tensor]:
        dim = x.shape[-1]
        if (rank := int(self.clip * dim)) < dim:
            most = x.abs().topk(dim - rank, -1).values[..., -1:]
            x = x.clamp(-most, most)
        codes, steps, zeros = _between_levels(x) if self.lloyd_max else _over_range(x, self.dtype)
        by_byte = codes.to(torch.uint8).unflatten(-1, (4, -1)).mT.flatten(-2)
        return {"codes": pack(by_byte, BITS), "scales": steps.to(self.dtype), "zeros": zeros.to(self.dtype)}

    def load(self, tensors: dict[str, Tensor]) -> Tensor:
        packed = tensors["codes"]
        codes = unpack(packed, BITS, 4 * packed.shape[-1]).unflatten(-1, (-1, 4)).mT.flatten(-2)
        return (codes.float() - tensors["zeros"].float()) * tensors["scales"].float()

    packed = TokenCodec.packed


def _over_range(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, step and zero of rows: value = (code - zero) * step."""
    low = x.amin(-1, keepdim=True)
    steps = (x.amax(-1, keepdim=True) - low).clamp_min(LEAST_RANGE) / LAST
    zeros = -low / steps
    # a row that is constant, but for so little that its zero overflows, is its own step
    flat = zeros.abs() > torch.finfo(dtype).max
    steps, zeros = torch.where(flat, low.abs(), steps), torch.where(flat, -low.sign(), zeros)
    return (x / steps + zeros + 0.5).floor().clamp(0, LAST), steps, zeros


def _between_levels(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same with thresholds of a normal distribution's four levels, read back on a grid of even steps."""
    mean = x.mean(-1, keepdim=True)
    spread = (x.var(-1, correction=0, keepdim=True) + LEAST_RANGE).sqrt()
    edges = torch.tensor([-THRESHOLD, 0.0, THRESHOLD], device=x.device)
    codes = torch.bucketize(((x - mean) / spread).contiguous(), edges, right=True)
    steps = SPAN / LAST * WIDER * spread
    return codes, steps, LAST / 2 - mean / steps
