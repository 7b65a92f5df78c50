"""KL divergence in float32 that stays exact for distributions which are almost equal."""

import torch
from torch import Tensor

LEAST = -80.0  # of log p: exp(80) is still a float32, and what p and p log p hold below it is not


def kl_divergence(p_log: Tensor, q_log: Tensor) -> Tensor:
    """KL(p || q) in nats over the last dimension of logarithms of probabilities, which broadcast.

    As sum p (expm1(d) - d), d = log q - log p: the same as sum -p d where both sum to 1, and no term is negative. That
    of sum -p d are, and cancel but for the rounding of float32, of which a small divergence would consist. Where p is
    0 the term is q.
    """
    floored = p_log.clamp(min=LEAST)
    d = q_log - floored
    terms = torch.expm1(d).sub_(d).mul_(floored.exp())
    nowhere = p_log == -torch.inf
    if nowhere.any():
        terms.masked_fill_(nowhere & (q_log == -torch.inf), 0.0)
    return terms.sum(-1).clamp_min_(0.0)  # expm1 may be an ulp below what it stands for
