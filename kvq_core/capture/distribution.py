"""How keys are distributed in their own channels and in latent ones (SVDq, Figures 1 to 3), before and after a lane."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvq_core.capture.spectra import thinned
from kvq_core.rope import Rope

QUANTILES = [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0]
SAMPLE = 256  # tokens quantiles are taken over, at most, evenly spaced


@dataclass(frozen=True)
class KeyBasis:
    """Latent channels of one layer: mean (channels,) and right singular vectors (channels, channels) of the prompt's
    centred keys before RoPE, heads side by side, strongest first."""

    rope: Rope
    mean: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, keys: Tensor, rope: Rope) -> "KeyBasis":
        """From the prompt's keys after RoPE (kv_heads, tokens, head_dim)."""
        x = _side_by_side(rope.unrotate(keys[None], 0)[0]).double()
        mean = x.mean(0)
        gram = (x - mean).T @ (x - mean)
        return cls(rope, mean.float(), torch.linalg.eigh(gram).eigenvectors.flip(-1).float())

    def quantiles(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Quantiles (channels, levels) of the prompt's keys (kv_heads, tokens, head_dim), given after RoPE: in their
        own channels before RoPE, and in the latent channels."""
        x = thinned(_side_by_side(self.rope.unrotate(keys[None], 0)[0]), SAMPLE)
        levels = torch.tensor(QUANTILES, device=x.device)
        both = (x, (x - self.mean) @ self.vectors)
        return tuple(torch.quantile(v, levels, dim=0).T.half().cpu() for v in both)  # type: ignore[return-value]


def _side_by_side(keys: Tensor) -> Tensor:
    """(kv_heads, tokens, head_dim) -> (tokens, kv_heads * head_dim)."""
    return keys.transpose(0, 1).flatten(1)
