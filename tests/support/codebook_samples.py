"""Keys and values that a codebook can learn, a tokenizer of letters, and what a codebook says of itself."""

import torch
from torch import Tensor

from kvq_core.codebooks import files
from kvq_core.training.collect import Samples
from tests.support.tiny_models import VOCABULARY

QUIET = lambda *_: None  # noqa: E731


def samples(tokens: int, seed: int, layers: int = 2, heads: int = 2, dim: int = 16) -> Samples:
    """Keys and values around a few directions, with a mean: what a codebook can learn and a new text shares."""
    shared, g = torch.Generator().manual_seed(99), torch.Generator().manual_seed(seed)
    directions = torch.randn(layers, heads, 12, dim, generator=shared) * 2
    mean = torch.randn(layers, heads, 1, dim, generator=shared)

    def one() -> Tensor:
        kind = torch.randint(12, (layers, heads, tokens), generator=g)
        at = directions.gather(2, kind[..., None].expand(-1, -1, -1, dim))
        return (at + mean + 0.5 * torch.randn(layers, heads, tokens, dim, generator=g)).half()

    return Samples(one(), one())


class Letters:
    """A tokenizer of single characters."""

    chat_template = None

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [3 + ord(c) % (VOCABULARY - 3) for c in text]}


def info(**changes: object) -> files.CodebookInfo:
    given = {
        "kind": "keys",
        "model": "a/Model",
        "weights_hash": "abcdef0123456789",
        "layers": 1,
        "kv_heads": 1,
        "head_dim": 4,
        "bits": 1.0,
        "levels": 4,
        "pairs_per_group": 2,
        "stages": 1,
        "settings": {"seed": 0},
        "digest": "d",
        "source": "t",
        "train_tokens": 5000,
        "held_out_tokens": 1024,
        "train_error": [0.1],
        "held_out_error": [0.2],
        "seconds": 1.0,
        "created": "2026-01-01",
        "command": "c",
    }
    return files.CodebookInfo(**{**given, **changes})
