"""How far two distributions are apart, in float32 that stays exact for those which are almost equal."""

from functools import partial

import torch
from torch import Tensor

from kvq_core.machine.threads import each

SLICE = 1 << 18  # elements
LEAST = -80.0  # of log p: exp(80) is still a float32, and what p and p log p hold below it is not


def kl_divergence(p_log: Tensor, q_log: Tensor) -> Tensor:
    """KL(p || q) in nats over the last dimension of logarithms of probabilities, which broadcast.

    As sum p (expm1(d) - d), d = log q - log p: the same as sum -p d where both sum to 1, and no term is negative. That
    of sum -p d are, and cancel but for the rounding of float32, of which a small divergence would consist. Where p is
    0 the term is q.
    """
    return _terms(p_log, q_log)[0].sum(-1).clamp_min_(0.0)  # expm1 may be an ulp below what it stands for


def divergence_and_overlap(p_log: Tensor, q_log: Tensor) -> tuple[Tensor, Tensor]:
    """KL(p || q) as ``kl_divergence`` has it, and the sum of min(p, q), of the same terms: 1 + sum p min(0, expm1(d)).

    p_log (positions, vocabulary), q_log (..., positions, vocabulary). The overlap is how probable it is that
    speculative sampling keeps a token drawn from q for one of p (Leviathan et al., 2023, arXiv:2211.17192, Corollary
    3.6).

    On a CPU by some positions at a time, whose terms a core's cache holds: two to three times as fast as all those of
    a prompt at once, and the same sums. Never one row alone, which several threads would sum up in another order.
    """
    kld, overlap = q_log.new_empty(q_log.shape[:-1]), q_log.new_empty(q_log.shape[:-1])
    count = 1
    if q_log.device.type == "cpu":
        count = p_log.shape[0] // max(2, SLICE // max(1, q_log[..., 0, :].numel()))
    whole = (p_log, 0), (q_log, -2), (kld, -1), (overlap, -1)
    slices = zip(*(x.tensor_split(max(1, count), at) for x, at in whole), strict=True)
    each([partial(_slice, *some) for some in slices], torch.get_num_threads())
    return kld, overlap


def _slice(p_log: Tensor, q_log: Tensor, kld: Tensor, overlap: Tensor) -> None:
    """Write both of some positions."""
    terms, grown, p = _terms(p_log, q_log)
    torch.sum(grown.clamp_(max=0.0).mul_(p), -1, out=overlap)
    overlap.add_(1.0).clamp_(0.0, 1.0)
    torch.sum(terms, -1, out=kld)
    kld.clamp_min_(0.0)


def _terms(p_log: Tensor, q_log: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Those of the divergence, expm1(d), and p."""
    floored = p_log.clamp(min=LEAST)
    p, d = floored.exp(), q_log - floored
    grown = torch.expm1(d)
    terms = torch.sub(grown, d, out=d).mul_(p)
    nowhere = p_log == -torch.inf
    if nowhere.device.type != "cpu" or nowhere.any():  # a GPU is not waited for: filling nothing changes nothing
        terms.masked_fill_(nowhere & (q_log == -torch.inf), 0.0)
    return terms, grown, p
