"""One residual stage of a RoPE-commutative key codebook, by expectation maximisation (CommVQ, Appendix A.2).

All heads (and channel groups) of a layer are trained at once: ``heads`` below counts them together. Data z
(heads, n, 2P) are what earlier stages left of the keys, each token divided by its norm over all heads of the layer.
In complex notation, one number x + iy a pair, a level is u_l (P numbers) and a centre is u_a + i u_b.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from kvq_kernels.rope_codebook import code_vectors, half_norms
from torch import Tensor

_ELEMENTS = 1 << 19  # soft assignments held at once: what fits a CPU's cache


@dataclass(frozen=True)
class EmSettings:
    """The annealing: ``steps`` temperatures from ``hot`` to ``cold``, geometric, in units of the data's rms norm.

    The authors' 1e-3 to 1e-5 are absolute and divided by 10 every four stages; relative to the data of each stage, the
    schedule depends neither on the number of heads nor on the number of stages. Training stops early once ``patience``
    steps brought less than ``tolerance`` of the error.
    """

    steps: int = 40
    hot: float = 0.03
    cold: float = 3e-4
    patience: int = 10
    tolerance: float = 1e-4


@dataclass(frozen=True)
class Assignments:
    """What the maximisation step needs of soft assignments W (heads, n, levels, levels), summed over tokens.

    counts (heads, levels, levels): N_ab · first, second (heads, levels, 2P): data weighted with each level's share as
    a and as b · error (heads,): weighted squared distance to the *nearest* centre.
    """

    counts: Tensor
    first: Tensor
    second: Tensor
    distance: Tensor
    error: Tensor


def assign(z: Tensor, weight: Tensor, vectors: Tensor, temperature: Tensor) -> Assignments:
    """Expectation (Eq. 35): W = softmax(-|z - centre| / temperature) over the centres, distances not squared.

    z (heads, n, 2P), weight (heads, n), code vectors (heads, 2, levels, 2P), temperature (heads,).
    """
    heads, n, _ = z.shape
    levels = vectors.shape[-2]
    inverse = 1 / temperature[:, None, None]
    z, vectors = z * inverse, vectors * inverse[..., None]  # distances come out divided by the temperature
    dots = 2 * (z @ vectors.flatten(1, 2).transpose(1, 2))
    table, size = 2 * half_norms(vectors)[:, None], z.square().sum(-1)[..., None]
    share = torch.empty(heads, n, 2 * levels)
    counts, nearest = torch.zeros(heads, levels, levels), torch.empty(heads, n)
    step = max(1, _ELEMENTS // (heads * levels * levels))
    for start in range(0, n, step):
        now = slice(start, start + step)
        squared = (table + (size[:, now] - dots[:, now, :levels])[..., None]).sub_(dots[:, now, None, levels:])
        distance = squared.flatten(-2).clamp_min_(0).sqrt_()
        w = torch.softmax(distance.neg_(), -1).unflatten(-1, (levels, levels))
        nearest[:, now] = distance.amax(-1)  # of the negated distances
        share[:, now, :levels], share[:, now, levels:] = w.sum(-1), w.sum(-2)
        counts += w.sum(1)
    parts = (share.transpose(1, 2) @ z) * temperature[:, None, None]
    nearest = nearest.square_() * temperature[:, None].square()
    return Assignments(counts, parts[:, :levels], parts[:, levels:], nearest, (nearest * weight).sum(-1))


def maximise(found: Assignments, ridge: float = 1e-6) -> Tensor:
    """Maximisation: the levels that minimise sum W |z - u_a - i u_b|^2, as theta (heads, levels, P, 2) float64.

    Setting the derivative to zero gives, for every pair alike, the Hermitian system
    (diag(rowsum N + colsum N) + i (N - N^T)) u = A - i B, with A, B the weighted data: the paper's
    phi = (T^T S T)^-1 T^T S m, whose matrix is not diagonal, in half the size. It is singular where a level is dead,
    hence the ridge (relative to the mean of the diagonal) and float64.
    """
    counts = found.counts.double()
    diagonal = counts.sum(-1) + counts.sum(-2)
    diagonal = diagonal + ridge * diagonal.mean(-1, keepdim=True)
    matrix = torch.complex(torch.diag_embed(diagonal), counts - counts.transpose(-1, -2))
    first, second = (torch.complex(*part.double().chunk(2, -1)) for part in (found.first, found.second))
    return torch.view_as_real(torch.linalg.solve(matrix, first - 1j * second))


def train_stage(
    z: Tensor, weight: Tensor, levels: int, settings: EmSettings, seed: int, tick: Callable[[], None] = lambda: None
) -> Tensor:
    """Levels of one stage: z (heads, n, 2P), weight (heads, n) -> theta (heads, levels, P, 2) float16, as stored.

    ``weight`` undoes the normalisation: of all steps, the levels whose hard assignment has the smallest weighted error
    are kept, head by head. The first half of the steps, whose temperatures only find the rough places, looks at every
    fourth token. Same inputs and seed, same result. ``tick`` is called before every step; what it raises ends the work.
    """
    generator = torch.Generator().manual_seed(seed)
    theta = first_levels(z, levels, generator)
    scale = z.square().sum(-1).mean(-1).sqrt().clamp_min(1e-12)
    best, lowest = theta, torch.full(z.shape[:1], float("inf"))
    last_gain, rough = 0, slice(None, None, 4 if z.shape[1] >= 16 * levels**2 else 1)
    for step in range(settings.steps + 1):
        tick()
        coarse = step < settings.steps // 2
        data, heavy = (z[:, rough], weight[:, rough]) if coarse else (z, weight)
        share = min(1.0, step / max(1, settings.steps - 1))
        temperature = scale * settings.hot * (settings.cold / settings.hot) ** share
        found = assign(data, heavy, code_vectors(theta.float()), temperature)
        if not coarse:
            better = found.error < lowest
            last_gain = step if (found.error < lowest * (1 - settings.tolerance)).any() else last_gain
            best, lowest = torch.where(better[:, None, None, None], theta, best), torch.minimum(lowest, found.error)
            if step - max(last_gain, settings.steps // 2) >= settings.patience:
                break
        theta = revive(maximise(found), found, data, generator)
    return best.to(torch.float16)


def first_levels(z: Tensor, levels: int, generator: torch.Generator) -> Tensor:
    """The paper's start: levels^2 random tokens as centres, one soft assignment at temperature 1 (in units of unit-norm
    tokens), one maximisation. All levels begin near the mean, and the annealing separates them."""
    heads, n, width = z.shape
    index = torch.randint(n, (heads, levels**2), generator=generator)
    centres = z.gather(1, index[..., None].expand(-1, -1, width))
    some = z[:, :: max(1, n // 4096)]
    w = torch.softmax(-torch.cdist(some, centres), -1)
    counts = w.sum(1).unflatten(-1, (levels, levels))
    data = (w.transpose(1, 2) @ some).unflatten(1, (levels, levels))
    return maximise(Assignments(counts, data.sum(2), data.sum(1), torch.empty(0), torch.empty(0)))


def revive(theta: Tensor, found: Assignments, z: Tensor, generator: torch.Generator) -> Tensor:
    """Move levels no token uses to where the error is: the k-means++ rule for a new centre.

    A token is drawn with probability proportional to its squared distance from its nearest centre, and the dead level
    a becomes the one whose centre (a, b), b the most used second level, is that token.
    """
    mass = found.counts.sum(-1) + found.counts.sum(-2)
    dead = (mass < 1e-3 * mass.mean(-1, keepdim=True)).nonzero()
    for head, level in dead.tolist():
        chance = found.distance[head]
        if chance.sum() <= 0:
            continue  # every token is met exactly: nothing to improve
        at = torch.multinomial(chance, 1, generator=generator)
        b = int(found.counts[head].sum(0).argmax())
        x, y = theta[head, b].unbind(-1)
        point = torch.stack(z[head, at[0]].double().chunk(2), -1)
        theta[head, level] = point - torch.stack([-y, x], -1)
    return theta
