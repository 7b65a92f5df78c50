"""The learned binary encoder and linear codebook of values (CommVQ, Section 4.1): v ~ s C with s in {0, 1}^Nc.

Values of a layer are vectors of d = kv_heads * head_dim numbers, heads side by side. Shapes carry layers first.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

EPS = 1e-6  # a token of zeros has no direction
# The four options of a group of two codewords, as the binary digits they put into s.
OPTIONS = ((1, 0), (0, 1), (1, 1), (0, 0))


@dataclass(frozen=True)
class Encoder:
    """The learned tensors, float32: scale (layers, d), the mean |v| of each channel · w1 (layers, d, hidden), b1
    (layers, hidden) · w2 (layers, hidden, 2 Nc), b2 (layers, 2 Nc), four logits for each of Nc / 2 groups · codebook
    (layers, Nc, d)."""

    scale: Tensor
    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor
    codebook: Tensor

    def normalize(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """v (layers, n, d) -> input of the encoder (layers, n, d) and prescale (layers, n, 1), the norm of v / scale.

        LayerNorm's own scale and shift are not separate: w1 and b1 contain them.
        """
        x = v / self.scale[:, None]
        prescale = x.norm(dim=-1, keepdim=True)
        # dividing by the prescale makes no difference after LayerNorm but for its eps, which expects that size
        return layer_norm(x / prescale.clamp_min(EPS), x.shape[-1:], eps=EPS), prescale

    def logits(self, x: Tensor) -> Tensor:
        """(layers, n, d) -> (layers, n, Nc / 2, 4)."""
        hidden = gelu(torch.baddbmm(self.b1[:, None], x, self.w1))
        return torch.baddbmm(self.b2[:, None], hidden, self.w2).unflatten(-1, (-1, 4))

    def digits(self, logits: Tensor) -> Tensor:
        """The most likely option of each group: binary digits (layers, n, Nc) uint8. No sampling at inference."""
        options = torch.tensor(OPTIONS, dtype=torch.uint8, device=logits.device)
        return options[logits.argmax(-1)].flatten(-2)

    def decode(self, digits: Tensor, prescale: Tensor) -> Tensor:
        """digits (layers, n, Nc) float32, prescale (layers, n, 1) -> v (layers, n, d): s C at the stored norm."""
        raw = digits @ self.codebook
        return raw * (prescale / raw.norm(dim=-1, keepdim=True).clamp_min(EPS)) * self.scale[:, None]


def to_stored(encoder: Encoder) -> dict[str, Tensor]:
    """The encoder as a file holds it: codebook and scale float16, weight matrices int8 with a float16 step per output.

    Decoding, which is what a cache reads, only touches the former; int8 weights move a few choices near a tie. What
    rounding w2 adds to the logits of an average input goes into b2.
    """
    stored = {"scale": encoder.scale.half(), "codebook": encoder.codebook.half(), "b1": encoder.b1}
    stored["w1"], stored["w1_step"] = _int8(encoder.w1)
    stored["w2"], stored["w2_step"] = _int8(encoder.w2)
    lost = encoder.w2 - stored["w2"] * stored["w2_step"].float()
    stored["b2"] = encoder.b2 + (gelu(encoder.b1)[:, None] @ lost)[:, 0]  # inputs average to zero: LayerNorm
    return stored


def _int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    step = (weight.abs().amax(-2, keepdim=True) / 127).clamp_min(1e-7).half()
    return (weight / step.float()).round().clamp(-127, 127).to(torch.int8), step


def from_stored(stored: dict[str, Tensor], layers: Tensor | None = None, device: str | torch.device = "cpu") -> Encoder:
    """The encoder of some layers (None: all) from a file's tensors."""
    t = {name: (x if layers is None else x[layers]).to(device).float() for name, x in stored.items()}
    return Encoder(t["scale"], t["w1"] * t["w1_step"], t["b1"], t["w2"] * t["w2_step"], t["b2"], t["codebook"])
