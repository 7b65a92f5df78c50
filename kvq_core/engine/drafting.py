"""What a drafter on a lane's cache would keep: speculative decoding with the full-precision cache as the verifier."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvq_core.record.fields import DRAFT_TOKENS


def tokens_a_step(series: Sequence[Tensor], drafted: int = DRAFT_TOKENS) -> float | None:
    """Tokens that one pass of the verifier yields, mean over where it may begin: 1 + the sum over k up to ``drafted``
    of the product of k consecutive acceptances, because a draft counts up to its first refusal.

    ``series``: acceptances (positions,) of stretches of text, each in order; none reaches from one into the next. None
    where all are shorter than ``drafted``. Of the series rather than the mean, since refusals come in clusters.
    """
    windows = [part.double().unfold(0, drafted, 1) for part in series if len(part) >= drafted]
    return 1 + torch.cat(windows).cumprod(-1).sum(-1).mean().item() if windows else None
