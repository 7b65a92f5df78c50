"""4-bit floating point (e2m1) with a scale a block of channels: NVFP4 and MXFP4."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from kvq_kernels import pack, unpack
from pydantic import Field
from torch import Tensor

from kvq_core.codecs.queries import QueryRounding, rounded_e4m3
from kvq_core.engines import first_release
from kvq_core.methods.base import Fitted, ModelRef, ModelShape, Prompt
from kvq_core.methods.deployments import Elsewhere, Home
from kvq_core.methods.formats.float8 import CALIBRATED, VLLM, ScaledCodec, prompt_scale, to_float8
from kvq_core.methods.formats.tokenwise import Format, TokenCodec

LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
HALFWAY = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
NVFP4_BLOCK = 16
LEAST = 1e-10
NEWER = "with CUDA 12.8 and PyTorch 2.8 or newer"  # SGLang 0.5.23, srt/mem_cache/kv_cache_dtype.py


def e2m1(x: Tensor, ties: Literal["even", "up"]) -> Tensor:
    """Codes uint8: sign and the nearest of LEVELS, larger magnitudes the largest; what lies halfway goes to the level
    with an even code, or to the larger one."""
    bounds = torch.tensor(HALFWAY, device=x.device)
    if ties == "even":  # what lies on a bound goes down, so those that it has to pass lie just below
        bounds[1::2] = bounds[1::2].nextafter(bounds.new_zeros(()))
    index = torch.bucketize(x.abs().contiguous(), bounds, right=ties == "up", out_int32=True).to(torch.uint8)
    return index | (torch.signbit(x).to(torch.uint8) << 3)


def from_e2m1(codes: Tensor) -> Tensor:
    """float32 of codes uint8."""
    levels = torch.tensor([*LEVELS, *(-level for level in LEVELS)], device=codes.device)
    return levels[codes.long()]


def _over(blocks: Tensor, scales: Tensor) -> Tensor:
    """Blocks (..., block) divided by scales (...), by 1 where a scale is 0."""
    divisor = scales.float()[..., None]
    return blocks / divisor.where(divisor > 0, torch.ones_like(divisor))


def _error(blocks: Tensor, scales: Tensor) -> Tensor:
    """Squared error (...) of blocks at scales: levels are whole steps of .5 below 2, of 1 below 4, of 2 from there."""
    y = _over(blocks, scales)
    most = y.abs()
    steps = 0.5 + 0.5 * (most >= 2) + (most >= 4)
    return (((y / steps).round() * steps).clamp(-6, 6) - y).mul_(scales.float()[..., None]).square_().sum(-1)


@dataclass(frozen=True)
class Nvfp4Codec(ScaledCodec):
    """Blocks of 16 with an e4m3 scale, behind one float32 scale of the layer; ``tries_four``: the largest element
    becomes 6 or 4, whichever leaves the smaller squared error."""

    tries_four: bool = False

    def store(self, x: Tensor) -> dict[str, Tensor]:
        blocks = x.unflatten(-1, (-1, NVFP4_BLOCK))
        most = blocks.abs().amax(-1)
        scales = to_float8(most / 6, "e4m3")
        if self.tries_four:
            larger = to_float8(most / 4, "e4m3")
            closer = _error(blocks, larger) < _error(blocks, scales)
            scales = scales.float().where(~closer, larger.float()).to(scales.dtype)
        return {"codes": pack(e2m1(_over(blocks, scales), "even").flatten(-2), 4), "scales": scales}

    def load(self, tensors: dict[str, Tensor]) -> Tensor:
        scales = tensors["scales"].float()
        codes = unpack(tensors["codes"], 4, 2 * tensors["codes"].shape[-1])
        return (from_e2m1(codes).unflatten(-1, (-1, NVFP4_BLOCK)) * scales[..., None]).flatten(-2)

    packed = TokenCodec.packed


@dataclass(frozen=True)
class Mxfp4Codec(TokenCodec):
    """Blocks with a power of two as scale, its exponent in a byte."""

    block: int = 16

    def store(self, x: Tensor) -> dict[str, Tensor]:
        blocks = x.unflatten(-1, (-1, self.block))
        exponent = self.exponents(blocks.abs().amax(-1)).clamp(-127, 127)
        codes = e2m1(torch.ldexp(blocks, -exponent[..., None]), "up" if self.block == 16 else "even")
        return {"codes": pack(codes.flatten(-2), 4), "exponents": (exponent + 127).to(torch.uint8)}

    def exponents(self, most: Tensor) -> Tensor:
        """Of the powers of two that divide blocks whose largest magnitudes are ``most``."""
        if self.block == 16:  # SGLang: so that nothing is cut
            return (most / 6).clamp_min(LEAST).log2().ceil()
        # OCP Microscaling Formats 1.0, 6.3: the largest element's own exponent, less e2m1's largest
        return torch.frexp(most.clamp_min(2.0**-125)).exponent.float() - 1 - 2

    def load(self, tensors: dict[str, Tensor]) -> Tensor:
        exponent = tensors["exponents"].float() - 127
        codes = unpack(tensors["codes"], 4, 2 * tensors["codes"].shape[-1])
        return torch.ldexp(from_e2m1(codes).unflatten(-1, (-1, self.block)), exponent[..., None]).flatten(-2)

    packed = TokenCodec.packed


class Nvfp4(Format):
    """4-bit floating-point numbers (e2m1: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives) in blocks of 16 channels of a
    token, each with an e4m3 scale.

    4.5 bits an element whatever the head, and a float32 scale a layer where it is calibrated. No window: the newest
    token is read as it is stored. Blackwell GPUs read it natively.
    """

    name: ClassVar[str] = "nvfp4"
    title: ClassVar[str] = "NVFP4"
    scales = ("channels", "channels")
    home: ClassVar[Home | None] = VLLM
    queries_to: ClassVar[str | None] = "e4m3"

    four_over_six: bool = Field(
        False, title="Four over six", description="A block's largest element becomes 6 or 4, whichever is closer."
    )
    scale: Literal["one", "tensor"] = Field(
        "one", title="Layer scale", description="1, or so that the prompt's largest block scale is e4m3's largest."
    )
    quantize_query: bool = Field(True, title="Round queries", description="To e4m3, as attention on Blackwell does.")

    def query_rounding(self, model: ModelRef | None = None) -> QueryRounding | None:
        return rounded_e4m3 if self.quantize_query else None

    def why_not(self, shape: ModelShape) -> str | None:
        return whole_blocks(shape.head_dim, NVFP4_BLOCK)

    def fit(self, prompt: Prompt) -> Fitted:
        if self.scale == "one":
            codec = Nvfp4Codec(tries_four=self.four_over_six)
            return Fitted(codec, codec)
        key, value = (
            Nvfp4Codec(tries_four=self.four_over_six, shared={"scale": prompt_scale(x, 6 * 448.0)})
            for x in (prompt.keys, prompt.values)
        )
        return Fitted(key, value, (CALIBRATED,))

    @property
    def cache_types(self) -> dict[str, str]:
        if self.four_over_six:
            return {"vLLM": "nvfp4_4over6"}
        return {"vLLM": "nvfp4", "SGLang": "nvfp4", "TensorRT-LLM": "nvfp4"}

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        asked = self.cache_types["vLLM"]
        needs = (
            "Needs a Blackwell GPU."
            if self.four_over_six
            else ("Blackwell GPUs; others since Ampere read it without rounding queries, and not with head_dim 64.")
        )
        first = first_release("vLLM", asked)
        ways = (Elsewhere("vLLM", f"vllm serve M --kv-cache-dtype {asked}", needs=needs, since=first),)
        return ways if self.four_over_six else (*ways, *_with_checkpoints())

    def summary(self) -> str:
        best = " · 4 or 6" if self.four_over_six else ""
        layer = " · a scale a layer" if self.scale == "tensor" else ""
        return f"e2m1 · blocks of 16{best}{layer}{' · Q e4m3' if self.quantize_query else ''}"


class Mxfp4(Format):
    """4-bit floating-point numbers (e2m1) in blocks of channels of a token, each with a power of two as scale.

    Blocks of 16 as SGLang has them take 4.5 bits an element, of 32 as the OCP standard has them 4.25. A power of two
    leaves up to a bit of the range unused, which NVFP4's scales do not. No window.
    """

    name: ClassVar[str] = "mxfp4"
    title: ClassVar[str] = "MXFP4"
    scales = ("channels", "channels")
    home: ClassVar[Home | None] = Home("SGLang", "raw")

    block: Literal[16, 32] = Field(16, title="Block", description="Channels of a scale: 16 in SGLang, 32 in OCP's.")

    def why_not(self, shape: ModelShape) -> str | None:
        return whole_blocks(shape.head_dim, self.block)

    def fit(self, prompt: Prompt) -> Fitted:
        codec = Mxfp4Codec(block=self.block)
        return Fitted(codec, codec)

    @property
    def cache_types(self) -> dict[str, str]:
        return {"SGLang": "fp4_mx_block16"} if self.block == 16 else {}

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        if self.block != 16:
            return ()
        # 0.5.23, srt/arg_groups/kv_cache_hook.py: refused without CUDA, and with other backends
        needs = (
            f"Needs an NVIDIA GPU, {NEWER}, and --attention-backend triton, torch_native, flex_attention or trtllm_mha."
        )
        how = "python -m sglang.launch_server --model-path M --kv-cache-dtype fp4_mx_block16"
        return (Elsewhere("SGLang", how, needs=needs, since=first_release("SGLang", "fp4_mx_block16")),)

    def summary(self) -> str:
        return f"e2m1 · blocks of {self.block} · power of two"


def _with_checkpoints() -> tuple[Elsewhere, ...]:
    """Servers that take NVFP4's layer scales from the checkpoint."""
    # 0.5.23, srt/arg_groups/kv_cache_hook.py; how a prompt is read: pull request 36340
    how = "python -m sglang.launch_server --model-path M --kv-cache-dtype nvfp4"
    said = (
        "Layer scales come from the checkpoint; SM100 takes six times those. On SM120 a prompt's earlier tokens are "
        "read through e4m3."
    )
    needs = f"Needs a Blackwell GPU (SM100 or SM120), {NEWER}."
    own = "Layer scales come from the checkpoint, which has to hold ModelOpt's."
    flags, first = "trtllm-serve M --kv_cache_dtype nvfp4", first_release("TensorRT-LLM", "nvfp4")
    return (
        Elsewhere("SGLang", how, said, needs, first_release("SGLang", "nvfp4")),
        Elsewhere("TensorRT-LLM", flags, own, "Needs a Blackwell GPU.", first),
    )


def whole_blocks(head_dim: int, block: int) -> str | None:
    """Why blocks of channels cannot tile a head; None where they can."""
    return None if head_dim % block == 0 else f"head_dim = {head_dim} is no multiple of its blocks of {block} channels"
