"""What SVDq, CommVQ and QAQ launch to read a cache of Llama-3.1-8B's shape, at 1 to 2 bits an element.

Sizes are those of benchmarks/gpu_method_cases.py: SVDq's mean of 2 bits keeps 3/8 of the latent channels, CommVQ's 1
bit has 11 stages of 64 levels, QAQ's widths are those of a token.
"""

from collections.abc import Iterator

import torch
from kvq_kernels.commuted import codebook_scores, codebook_values
from kvq_kernels.latent import LatentKeys, latent_scores
from kvq_kernels.launch import LaunchRecord, record_launches
from kvq_kernels.mixed import MixedTokens, mixed_scores, mixed_values
from kvq_kernels.rotation import Turn

from benchmarks.aot.forms import KV_HEADS, Form

DIM, SHARED, TOKENS = 128, 4, 512
KEPT, STAGES, LEVELS = 3 * KV_HEADS * DIM // 8, 11, 64
METHOD_OPERATIONS = ("latent_scores", "codebook_scores", "codebook_values", "mixed_scores", "mixed_values")
TURN = Turn(torch.zeros(TOKENS, DIM // 2), torch.zeros(TOKENS, DIM // 2))


def method_forms() -> Iterator[Form]:
    yield _latent()
    yield from _codebooks()
    yield from _mixed()


def _form(
    operation: str, method: str, launch: LaunchRecord, tile: int, nbytes: float, shared: int = SHARED, turns: int = 1
) -> Form:
    return Form(operation, method, DIM, shared, launch, tile, nbytes, turns=turns)


def _asked() -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and weights."""
    sizes = (DIM, TOKENS)
    return tuple(torch.zeros(KV_HEADS, SHARED, size, dtype=torch.float16) for size in sizes)  # type: ignore[return-value]


def _latent() -> Form:
    """Every program rebuilds its tokens' channels in turns over the latent ones."""
    meta, channels = torch.zeros(1, KEPT).half(), KV_HEADS * DIM
    codes = torch.zeros(1, KEPT, TOKENS, dtype=torch.uint8)
    widths = [8] * (KEPT // 3) + [4] * (2 * KEPT // 3)
    keys = LatentKeys.of(
        codes, widths, meta, meta, torch.zeros(1, channels, KEPT).half(), torch.zeros(1, channels).half()
    )
    with record_launches() as found:
        latent_scores(_asked()[0], keys, TURN, TOKENS, "triton")
    constants = found[0].constants
    tile, nbytes = 2 * constants["HALF"] * constants["BT"], keys.codes.numel() / (TOKENS * channels)
    return _form("latent_scores", "SVDq", found[0], tile, nbytes, turns=-(-KEPT // constants["LATENT"]))


def _codebooks() -> Iterator[Form]:
    """Scores: a program sums its keys up in turns over the stages, or rows of one query's tables. Values: one product
    of all queries of a layer."""
    yield codebook_form(SHARED)
    yield codebook_form(1)
    digits, book = torch.zeros(TOKENS, DIM, dtype=torch.uint8), torch.zeros(KV_HEADS * DIM, KV_HEADS * DIM)
    with record_launches() as found:
        codebook_values(_asked()[1], digits, torch.zeros(TOKENS), book, torch.zeros(KV_HEADS * DIM), "triton")
    values = found[0]
    yield _form("codebook_values", "CommVQ", values, values.constants["BT"] * values.constants["N"], 1 / 8)


def codebook_form(shared: int, tokens: int = 4 * STAGES * LEVELS) -> Form:
    """Scores of so many query heads a KV head over so many keys; the form of tables of the query leaves out what makes
    these, whose work does not grow with the keys."""
    theta = torch.zeros(KV_HEADS, 1, STAGES, LEVELS, DIM // 2, 2)
    stream = torch.zeros(KV_HEADS, tokens * STAGES * 2 * 6 // 8, dtype=torch.uint8)
    turn, q = Turn(*torch.zeros(2, tokens, DIM // 2)), torch.zeros(KV_HEADS, shared, DIM, dtype=torch.float16)
    with record_launches() as found:
        codebook_scores(q, theta, stream, torch.zeros(tokens).half(), turn, "triton")
    scores = found[-1]
    tile, nbytes = scores.constants["BT"] * 2 * scores.constants["HP"], stream.numel() / (tokens * KV_HEADS * DIM)
    commutes = scores.arguments["q"] is None
    method = "CommVQ, tables of the query" if commutes else "CommVQ"
    return _form("codebook_scores", method, scores, tile, nbytes, shared, turns=STAGES)


def _mixed() -> Iterator[Form]:
    q, p = (each[None] for each in _asked())
    unit, outliers = torch.zeros(TOKENS, 1, KV_HEADS), torch.zeros(TOKENS, 1, KV_HEADS, 2)
    codes = torch.zeros(TOKENS, 1, KV_HEADS, DIM, dtype=torch.uint8)
    mixed = MixedTokens.of(codes, unit.int() + 2, unit.half(), unit.half(), outliers.half(), outliers)
    nbytes = sum(t.numel() * t.element_size() for t in mixed) / codes.numel()
    with record_launches() as found:
        mixed_scores(q, mixed, "triton")
        mixed_values(p, mixed, DIM, "triton")
    for operation, launch in zip(("mixed_scores", "mixed_values"), found, strict=True):
        tile = launch.constants["BT"] * launch.constants["DP"]
        yield _form(operation, "QAQ", launch, tile, nbytes)
