"""How keys are distributed in their own channels and in latent ones (SVDq, Figures 1 to 3), before and after a lane."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvq_core.capture.spectra import before_rope, evenly_spaced
from kvq_core.models.rope import Rope

QUANTILES = [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0]
SAMPLE = 256  # tokens quantiles are taken over, at most, evenly spaced


@dataclass(frozen=True)
class KeyBasis:
    """Latent channels of one layer: mean (channels,) and right singular vectors (channels, channels) of the prompt's
    centred keys before RoPE, heads side by side, strongest first. ``tokens`` (n,) are those quantiles are taken over,
    ``rope`` the layer's at their positions."""

    tokens: Tensor
    rope: Rope
    mean: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, keys: Tensor, rope: Rope) -> "KeyBasis":
        """From the prompt's keys after RoPE (kv_heads, tokens, head_dim) and the layer's RoPE."""
        x = _side_by_side(before_rope(keys, rope)).double()
        mean = x.mean(0)
        gram = (x - mean).T @ (x - mean)
        tokens = evenly_spaced(keys.shape[1], SAMPLE)
        vectors = torch.linalg.eigh(gram).eigenvectors.flip(-1).float()
        return cls(tokens, rope.at(tokens.to(rope.cos.device)), mean.float(), vectors)

    def quantiles(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Quantiles (channels, levels) of the prompt's keys (kv_heads, tokens, head_dim), given after RoPE: in their
        own channels before RoPE, and in the latent channels."""
        x = _side_by_side(before_rope(keys[:, self.tokens.to(keys.device)], self.rope))
        return _quantiles(x), _quantiles((x - self.mean) @ self.vectors)


def _quantiles(x: Tensor) -> Tensor:
    """x (tokens, channels) -> (channels, levels) float16."""
    # numpy finds them in an array that is in order, and puts one in order, several times faster than it partitions it
    rows = np.sort(x.T.contiguous().cpu().numpy(), -1)
    return torch.from_numpy(np.quantile(rows, QUANTILES, axis=-1, overwrite_input=True).T).half()


def _side_by_side(keys: Tensor) -> Tensor:
    """(kv_heads, tokens, head_dim) -> (tokens, kv_heads * head_dim)."""
    return keys.transpose(0, 1).flatten(1)
