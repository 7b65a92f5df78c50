"""Residual codebooks: k-means of vectors, then of what is left of them, stage by stage."""

import torch
from torch import Tensor

SEED = 0
SAMPLE = 4096  # vectors that a stage is trained on, at most
ROUNDS = 4
_ROWS = 1024  # vectors searched at once: what fits a CPU's cache


def nearest(vectors: Tensor, centres: Tensor) -> Tensor:
    """The nearest of centres (count, width) for each of vectors (n, width): (n,) int64; the first among equals."""
    half = centres.square().sum(-1) / -2
    return torch.cat([_first_largest(torch.addmm(half, part, centres.mT)) for part in vectors.split(_ROWS)])


def _first_largest(x: Tensor) -> Tensor:
    """Where each row of x (n, count) is largest, (n,) int64."""
    return x.argmax(-1) if x.is_cuda else torch.from_numpy(x.numpy().argmax(-1))  # several times faster than torch's


def kmeans(vectors: Tensor, count: int, rounds: int = ROUNDS) -> Tensor:
    """Centres (min(count, n), width) that lessen the squared distance of vectors (n, width) to the nearest of them.

    Lloyd's iteration from vectors drawn with a seed. A centre that is nearest to none moves to one of the vectors that
    are worst met.
    """
    n = len(vectors)
    start = torch.randperm(n, generator=torch.Generator().manual_seed(SEED))[:count]
    centres = vectors[start.to(vectors.device)]
    for _ in range(rounds if n > count else 0):
        codes = nearest(vectors, centres)
        held = torch.bincount(codes, minlength=count)
        sums = torch.zeros_like(centres).index_add_(0, codes, vectors)
        before, centres = centres, sums / held.clamp_min(1)[:, None]
        if len(empty := (held == 0).nonzero()[:, 0]):
            worst = (vectors - before[codes]).square().sum(-1).topk(len(empty)).indices
            centres[empty] = vectors[worst]
    return centres


def train_codebooks(vectors: Tensor, entries: int, stages: int) -> Tensor:
    """Codebooks of vectors (n, width) in fp16: (stages, min(entries, n), width).

    A stage is trained on what the stages before it leave of the same sample, at most SAMPLE vectors drawn with a seed.
    """
    sample = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(SEED))[:SAMPLE]
    left, books = vectors[sample.to(vectors.device)], []
    for _ in range(stages):
        books.append(kmeans(left, entries).half())
        centres = books[-1].float()
        left = left - centres[nearest(left, centres)]
    return torch.stack(books)


def nearest_codes(vectors: Tensor, books: Tensor) -> Tensor:
    """uint8 codes (n, stages) of vectors (n, width): of each stage the centre nearest to what is left, greedily."""
    codes = []
    for centres in books.float():
        codes.append(nearest(vectors, centres))
        vectors = vectors - centres[codes[-1]]
    return torch.stack(codes, -1).to(torch.uint8)


def sum_of_centres(codes: Tensor, books: Tensor) -> Tensor:
    """The sum of the centres that codes (n, stages) name: float32 (n, width)."""
    stages, entries, _ = books.shape
    at = codes.int() + entries * torch.arange(stages, dtype=torch.int32, device=codes.device)
    return torch.nn.functional.embedding_bag(at, books.float().flatten(0, 1), mode="sum")
