"""llama.cpp's q8_0: signed bytes in blocks of 32 channels that share a scale."""

import torch
from kvq_kernels.dispatch import Path, use_triton
from kvq_kernels.launch import ROUND, run
from torch import Tensor
from torch.library import custom_op

BLOCK = 32
BELOW_HALF = 0.49999997  # the largest float32 below .5: added before truncating, it rounds halves away from zero


def q8_0(x: Tensor) -> tuple[Tensor, Tensor]:
    """ggml-quants.c, quantize_row_q8_0_ref, of blocks x (..., channels) float32: codes int8 of the same shape, halves
    away from zero, and scales fp16 (..., 1), the largest magnitude over 127."""
    halfway, scale = _halfway(x)
    return halfway.to(torch.int8), scale


def inverse(scale: Tensor) -> Tensor:
    """1 / scale float32, 0 where a block has none to speak of, as ggml has it."""
    return scale.reciprocal().masked_fill_(scale.abs() <= torch.finfo(torch.float32).tiny, 0.0)


def round_q8_0(x: Tensor, path: Path = "auto") -> Tensor:
    """What q8_0 reads of x (..., channels) float32. Channels that are no multiple of 32 have a smaller last block."""
    short = x.shape[-1] % BLOCK
    if use_triton("round_q8_0", path, x, f"{x.shape[-1]} channels are no multiple of {BLOCK}" if short else None):
        from kvq_kernels.triton_ops.ggml import round_q8_0_kernel

        x = x.contiguous()
        out, blocks = torch.empty_like(x), x.numel() // BLOCK
        given = {"x": x, "out": out, "blocks": blocks}
        run(round_q8_0_kernel, (-(-blocks // ROUND.tokens),), ROUND, given, {"BLOCKS": ROUND.tokens})
        return out
    if short:
        return torch.cat([_read(block) for block in x.split(BLOCK, -1)], -1)
    return _read(x.unflatten(-1, (-1, BLOCK))).flatten(-2)


@custom_op("kvq::round_q8_0", mutates_args=())
def round_q8_0_at_once(x: Tensor) -> Tensor:
    """``round_q8_0`` as one operation of torch's, whatever it launches."""
    return round_q8_0(x)


@round_q8_0_at_once.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _halfway(x: Tensor) -> tuple[Tensor, Tensor]:
    """What truncating makes the codes, float32, and the scales."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    scaled = x * inverse(scale)
    return scaled.add_(scaled.sign(), alpha=BELOW_HALF), scale.half()


def _read(blocks: Tensor) -> Tensor:
    halfway, scale = _halfway(blocks)
    return halfway.trunc_().mul_(scale)
