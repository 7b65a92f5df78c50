"""What llama.cpp itself answers of a tiny file, beside the logits of the same tokens here."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from kvq_core.servers.llama_cpp import LlamaCpp, Types


def apart(file: Path, ids: list[int], own: torch.Tensor, ends: Iterable[int]) -> float:
    """Largest difference of a log probability, over the spread of the logits: after two of the positions ``ends`` whose
    next token is text that llama.cpp sends. own (tokens, vocabulary): logits here."""
    at = [end for end in ends if own[end - 1].argmax() < 0x80][:2]
    assert at, "no position is asked about"
    with LlamaCpp(file, Types("f32", "f32"), 128, threads=1) as engine:
        tops = [engine.logprobs(ids[:end], [0])[0] for end in at]
    worst = 0.0
    for end, top in zip(at, tops, strict=True):
        expected = torch.log_softmax(own[end - 1], -1).numpy()
        worst = max(worst, float(np.abs(expected[top.ids] - top.logprobs).max() / own[end - 1].std()))
    return worst
