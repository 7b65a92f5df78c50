"""The rate-distortion function of a Gaussian source: what error a number of bits an element must cost such a source."""

import torch
from torch import Tensor

BITS = [b / 4 for b in range(33)]  # 0 .. 8 bits an element


def water_filling(variances: Tensor, bits: list[float]) -> Tensor:
    """Least summed squared error of independent Gaussian components at each of ``bits`` a component on average.

    variances (n,), >= 0 -> (len(bits),) float64. Reverse water-filling (Cover and Thomas, Theorem 10.3.3): every
    component gets the error min(level, variance), the level such that the rates, log2(variance / level) / 2 where
    positive, sum to n * bits. Solved exactly: with the m strongest components above the level, its logarithm is their
    mean log2 variance less 2 n bits / m.
    """
    held = variances.double().flatten().clamp_min(0).sort(descending=True).values
    positive = held[held > 0]
    if not len(positive):
        return torch.zeros(len(bits), dtype=torch.float64)
    counts = torch.arange(1, len(positive) + 1, dtype=torch.float64)
    logs, spent = positive.log2(), torch.tensor(bits, dtype=torch.float64)[:, None] * (2 * len(held))
    levels = (logs.cumsum(0) - spent) / counts  # log2 of the level if the first m are above it
    above = (levels < logs).sum(-1, keepdim=True)  # true for a first stretch: one below the level raises it
    level = 2 ** levels.gather(-1, (above - 1).clamp_min(0))
    return torch.minimum(positive, level).sum(-1)


def reference_curve(variances: Tensor, energies: Tensor, bits: list[float]) -> Tensor:
    """Relative error ||dX||_F / ||X||_F of a Gaussian source with these covariances at each rate, mean over layers.

    variances (layers, kv_heads, head_dim), eigenvalues of each head's covariance; energies (layers,) mean squared size
    of a layer's token, mean included, in the same units. The rate of a layer is spread over its heads and components
    as is best; layers have the same rate. A reference, not a bound: real keys are no Gaussian source, and their means
    come free here.
    """
    found = torch.stack([water_filling(layer, bits) for layer in variances])
    relative = found / energies.double().clamp_min(1e-30)[:, None]
    return relative.sqrt().mean(0).float()
