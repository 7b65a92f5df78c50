"""Levels of a non-uniform quantizer: k-means of numbers between -1 and 1, layer by layer (KVQuant's nuq)."""

import torch
from torch import Tensor

BINS = 4096  # of the histogram that k-means runs on
ROUNDS = 100


def fitted_levels(numbers: Tensor, weights: Tensor, count: int) -> Tensor:
    """``count`` levels in rising order that lessen the squared error of numbers (layers, n) from -1 to 1, each by its
    ``weights`` (layers, n), which may be bool: (layers, count) float32.

    Lloyd's iteration from quantiles. It runs on a histogram that keeps the sum of each bin, so that means are exact
    and only the borders between levels are rounded to bins; a level that no number is nearest to stays where it is.
    """
    edges = torch.linspace(-1, 1, BINS + 1, device=numbers.device, dtype=torch.float64)
    amounts, sums = (torch.stack(parts).cumsum(-1) for parts in zip(*map(_histogram, numbers, weights), strict=True))
    amounts, sums = (torch.nn.functional.pad(part, (1, 0)) for part in (amounts, sums))
    total = _or_one(amounts[:, -1:])
    share = (torch.arange(count, device=numbers.device, dtype=torch.float64) + 0.5) / count
    start = torch.searchsorted(amounts, (share * total).contiguous())
    levels = edges[start.clamp(1, BINS)] - 1 / BINS
    for _ in range(ROUNDS):
        borders = torch.searchsorted(edges, (levels[:, 1:] + levels[:, :-1]) / 2)
        borders = torch.nn.functional.pad(torch.nn.functional.pad(borders, (1, 0)), (0, 1), value=BINS)
        held = amounts.gather(1, borders).diff(dim=-1)
        means = sums.gather(1, borders).diff(dim=-1) / _or_one(held)
        before, levels = levels, torch.where(held > 0, means, levels)
        if torch.equal(before, levels):
            break
    return levels.float()


def _or_one(x: Tensor) -> Tensor:
    """x, and 1 where it is 0."""
    return torch.where(x > 0, x, 1.0)


def _histogram(numbers: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of the numbers (n,) in each bin, and their sums, float64."""
    bins = ((numbers + 1) * (BINS / 2)).long().clamp_(0, BINS - 1)
    weights = weights.double()
    return torch.bincount(bins, weights, BINS), torch.bincount(bins, weights * numbers, BINS)


def nearest_level(numbers: Tensor, levels: Tensor) -> Tensor:
    """numbers (layers, ...) -> uint8 codes of the nearest of their layer's levels (layers, count); between two, the
    lower one."""
    borders = (levels[:, 1:] + levels[:, :-1]) / 2
    found = (torch.bucketize(x, own) for x, own in zip(numbers, borders, strict=True))
    return torch.stack([codes.to(torch.uint8) for codes in found])


def level_of(codes: Tensor, levels: Tensor) -> Tensor:
    """The inverse of ``nearest_level``, up to rounding: float32 (layers, ...)."""
    return torch.stack([own.float()[x.int()] for x, own in zip(codes, levels, strict=True)])
