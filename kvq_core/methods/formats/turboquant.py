"""TurboQuant, as vLLM ships it and as its paper has it."""

from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar, Literal

import torch
from kvq_kernels import pack, unpack
from pydantic import Field
from torch import Tensor

from kvq_core.codecs.hadamard import Hadamard
from kvq_core.engines import first_release
from kvq_core.methods.base import Fitted, ModelShape, Prompt
from kvq_core.methods.deployments import Elsewhere, Home
from kvq_core.methods.formats.float8 import Float8Codec
from kvq_core.methods.formats.tokenwise import Format, TokenCodec, boundary

Preset = Literal["k8v4", "4bit_nc", "k3v4_nc", "3bit_nc", "paper"]
WIDTHS: dict[Preset, tuple[int, int]] = {  # of keys (8: e4m3) and of values
    "k8v4": (8, 4),
    "4bit_nc": (4, 4),
    "k3v4_nc": (3, 4),
    "3bit_nc": (3, 3),
    "paper": (3, 3),
}
START, SIGMAS, POINTS, ROUNDS = 3.5, 10.5, 200, 200  # of vLLM's solver
SEED = 0  # of the paper's rotation
LEAST_NORM, LEAST_STEP = 1e-8, 1e-8


@cache
def centroids(bits: int) -> tuple[float, ...]:
    """Lloyd-Max levels of a standard normal variable, by vLLM's solver: from even steps within 3.5 standard
    deviations 200 rounds of means over intervals, each a trapezoid rule of 200 steps, the outer ones ended at 10.5."""
    count = 1 << bits
    normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))
    levels = START * ((2 * torch.arange(count, dtype=torch.float64) + 1) / count - 1)
    ends = torch.tensor([-SIGMAS, SIGMAS], dtype=torch.float64)
    for _ in range(ROUNDS):
        edges = torch.cat([ends[:1], (levels[1:] + levels[:-1]) / 2, ends[1:]])
        share = torch.linspace(0, 1, POINTS + 1, dtype=torch.float64)
        at = edges[:-1, None] + share * (edges[1:] - edges[:-1])[:, None]
        density = normal.log_prob(at).exp()
        levels = torch.trapezoid(at * density, at) / torch.trapezoid(density, at)
    return tuple(levels.tolist())


@dataclass(frozen=True)
class SphereCodec(TokenCodec):
    """A row's norm in fp16 and each coordinate of its direction, turned, as the nearest Lloyd-Max level of
    N(0, 1/head_dim); ``corrected``: directions are brought back to length 1 when they are read."""

    bits_per_code: int = 4
    corrected: bool = True
    basis: Tensor | None = None  # (head_dim, head_dim) orthogonal, in place of ``turn``

    def store(self, x: Tensor) -> dict[str, Tensor]:
        norms = x.norm(dim=-1, keepdim=True)
        directions = x / (norms + LEAST_NORM)
        if self.basis is not None:
            directions = directions @ self.basis
        levels = self._levels(x)
        codes = torch.bucketize(directions.contiguous(), (levels[1:] + levels[:-1]) / 2, right=True).to(torch.uint8)
        return {"codes": pack(codes, self.bits_per_code), "norms": norms.half()}

    def load(self, tensors: dict[str, Tensor]) -> Tensor:
        codes = tensors["codes"]
        dim = codes.shape[-1] * 8 // self.bits_per_code
        found = self._levels(codes, dim)[unpack(codes, self.bits_per_code, dim).long()]
        if self.corrected:
            found = found / found.norm(dim=-1, keepdim=True)
        if self.basis is not None:
            found = found @ self.basis.mT
        return found * tensors["norms"].float()

    def _levels(self, like: Tensor, dim: int | None = None) -> Tensor:
        return torch.tensor(centroids(self.bits_per_code), device=like.device) * (dim or like.shape[-1]) ** -0.5

    packed = TokenCodec.packed


@dataclass(frozen=True)
class RangeHeads(TokenCodec):
    """Codes of even steps from a row's smallest element to its largest; step and smallest element in fp16."""

    bits_per_code: int = 4

    def store(self, x: Tensor) -> dict[str, Tensor]:
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        last = (1 << self.bits_per_code) - 1
        steps = ((high - low) / last).clamp_min(LEAST_STEP)
        codes = ((x - low) / steps + 0.5).floor().clamp(0, last).to(torch.uint8)
        return {"codes": pack(codes, self.bits_per_code), "scales": steps.half(), "zeros": low.half()}

    def load(self, tensors: dict[str, Tensor]) -> Tensor:
        codes = tensors["codes"]
        dim = codes.shape[-1] * 8 // self.bits_per_code
        found = unpack(codes, self.bits_per_code, dim).float() * tensors["scales"].float()
        return found + tensors["zeros"].float()

    packed = TokenCodec.packed


def random_rotation(dim: int, device: torch.device) -> Tensor:
    """(dim, dim) orthogonal, float32: Q of a Gaussian matrix."""
    gaussian = torch.randn(dim, dim, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    return (q * r.diagonal().sign()).float().to(device)


class TurboQuant(Format):
    """Keys as a norm and a direction, turned by a Hadamard transform, whose coordinates take Lloyd-Max levels of a
    normal distribution; values as even steps between a token's smallest and largest element.

    Presets are vLLM's: with 4-bit keys 4 + 16/head_dim bits of a key and 4 + 32/head_dim of a value. The first and last
    boundary_layers layers stay fp16, and are most of what is kept on small models. ``nc``: directions are brought back
    to length 1. Paper: keys and values alike behind a random rotation, 3 bits, no layer kept. No window.
    """

    name: ClassVar[str] = "turboquant"
    title: ClassVar[str] = "TurboQuant"
    scales = (None, "channels")
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2504.19874"
    deviations: ClassVar[tuple[str, ...]] = (
        "LMCache's TurboQuant (0.5.6) is another format: random signs, other ones a layer, come first.",
        "The paper's second stage, one more bit for the sign of the projected residual (QJL), is left out, as every "
        "deployment leaves it out: it raises the variance of scores.",
        "The paper's outlier channels, which get a bit more, are left out.",
        "Rows of the paper's rotation come from a fixed seed; all layers and heads share one.",
    )
    home: ClassVar[Home | None] = Home("vLLM", "raw")

    preset: Preset = Field("4bit_nc", title="Preset", description="vLLM's names, or the paper's method.")
    boundary_layers: int = Field(
        2, ge=0, le=64, title="Boundary layers", description="First and last layers that stay fp16, as vLLM keeps them."
    )

    @property
    def not_rotated(self) -> str | None:
        return "it rotates keys itself"

    def kept_layers(self, layers: int) -> frozenset[int]:
        return boundary(0 if self.preset == "paper" else self.boundary_layers, layers)

    def why_not(self, shape: ModelShape) -> str | None:
        if shape.head_dim & (shape.head_dim - 1):
            return f"head_dim = {shape.head_dim} is no power of two, and keys are turned whole"
        if shape.head_dim < 8:
            return f"head_dim = {shape.head_dim} is below 8, of which 3-bit codes fill no bytes"
        return None

    def fit(self, prompt: Prompt) -> Fitted:
        (key, value), dim, device = WIDTHS[self.preset], prompt.keys.shape[-1], prompt.keys.device
        if self.preset == "paper":
            bases = (random_rotation(x.shape[-1], device) for x in (prompt.keys, prompt.values))
            sphere = partial(SphereCodec, corrected=False)
            return Fitted(sphere(bits_per_code=key, basis=next(bases)), sphere(bits_per_code=value, basis=next(bases)))
        values = RangeHeads(bits_per_code=value)
        if key == 8:
            return Fitted(Float8Codec(), values)
        return Fitted(SphereCodec(Hadamard.of(dim, device), key), values)

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        if self.preset == "paper":
            return ()
        layers = None if self.boundary_layers == 2 else "vLLM keeps the first and last two layers."
        # 0.33.0: platforms/cuda.py and rocm.py list its backend, which asks for no compute capability;
        # v1/attention/ops/triton_turboquant_store.py has keys by it
        needs = "An NVIDIA or AMD GPU." + (
            " Keys are e4b15 below compute capability 8.9 (Ada, Hopper)." if self.preset == "k8v4" else ""
        )
        word = f"turboquant_{self.preset}"
        how = f"vllm serve M --kv-cache-dtype {word}"
        return (Elsewhere("vLLM", how, layers, needs, first_release("vLLM", word)),)

    @property
    def cache_types(self) -> dict[str, str]:
        return {} if self.preset == "paper" or self.boundary_layers != 2 else {"vLLM": f"turboquant_{self.preset}"}

    def summary(self) -> str:
        kept = f" · {self.boundary_layers} first and last layers fp16" * (
            self.preset != "paper" and self.boundary_layers > 0
        )
        return f"{self.preset}{kept}"

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        return f"{self.name} {self.preset}"
