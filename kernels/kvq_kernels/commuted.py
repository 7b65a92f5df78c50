"""CommVQ at decode time: q . RoPE(K)ᵀ, and p . V as (p . S) . C (Eqs. 9 and 22).

The reference finds scores in tables of the query (Eq. 19), and so does the kernel where a KV head has one query and
over twice as many keys as a table has entries. Several queries would each add up rows of tables of their own, and
adding is nearly all of the work: for them a key is summed up from the codebook once, turned, and multiplied on tensor
cores. The choice follows the count of ``scores_work``; tables of the query are untried on a GPU.
"""

import torch
from kvq_kernels.dispatch import Path, use_triton
from kvq_kernels.gemv import compute_type
from kvq_kernels.launch import COMMUTED, TABLES, VALUES, power_of_two, run, split_tokens
from kvq_kernels.packing import unpack
from kvq_kernels.rope_codebook import commuted_scores, score_tables, scores_work, split_pairs
from kvq_kernels.rotation import Turn
from torch import Tensor


def codebook_scores(
    q: Tensor, theta: Tensor, codes: Tensor, prescale: Tensor, turn: Turn, path: Path = "auto"
) -> Tensor:
    """q (..., kv_heads, n, head_dim) after RoPE . RoPE(keys)ᵀ: float32 (..., kv_heads, n, tokens).

    theta (kv_heads, groups, stages, levels, P, 2); codes (..., kv_heads, bytes) uint8, the levels packed in
    log2(levels) bits in the order (groups, tokens, stages, 2); prescale (..., tokens).
    """
    *lead, heads, queries, _ = q.shape
    _, groups, stages, levels, pairs, _ = theta.shape
    tokens, width = prescale.shape[-1], levels.bit_length() - 1
    wide = None if levels == 1 << width and levels <= 128 else f"levels = {levels} is not a power of two up to 128"
    if not use_triton("codebook_scores", path, q, wide):
        found = unpack(codes, width, groups * tokens * stages * 2).unflatten(-1, (groups, tokens, stages, 2))
        return _reference(q, theta, found, turn) * prescale.float()[..., None, None, :]
    from kvq_kernels.triton_ops.commuted import codebook_scores_kernel

    out = torch.empty(*lead, heads, queries, tokens, dtype=torch.float32, device=q.device)
    commuting = commutes(queries, tokens, stages, levels)
    rows = (_query_tables if commuting else _planes)(theta, q.contiguous())  # (..., levels, 2, P)
    run(
        codebook_scores_kernel,
        (out.shape[:-2].numel() * -(-tokens // COMMUTED.tokens),),
        COMMUTED,
        {
            "q": None if commuting else q.contiguous(), "theta": rows,
            "codes": codes.contiguous(), "prescale": prescale.contiguous(), **turn.contiguous()._asdict(), "out": out,
            "queries": queries, "heads": heads, "tokens": tokens, "groups": groups, "stages": stages,
            "row_bytes": codes.shape[-1],
        },
        {
            "M": 1 if commuting else max(16, power_of_two(queries)), "BT": COMMUTED.tokens,
            "HP": max(16, power_of_two(pairs)), "WIDTH": width, "LEVELS": levels, "PAIRS": pairs,
            "DTYPE": compute_type(q),
        },
    )  # fmt: skip
    return out


def _reference(q: Tensor, theta: Tensor, codes: Tensor, turn: Turn) -> Tensor:
    """Codes (..., kv_heads, groups, tokens, stages, 2); every query asks every group of its head's pairs."""
    *lead, heads, queries, _ = q.shape
    groups, pairs = theta.shape[1], theta.shape[-2]
    asked = split_pairs(q.float(), pairs).transpose(-3, -2)  # (..., kv_heads, n, groups, 2P)
    tables = score_tables(asked, theta.float()[:, None])  # (..., kv_heads, n, groups, stages, 2, levels, 2P)
    turns = (t.unflatten(-1, (groups, pairs)).transpose(0, 1) for t in turn)  # (groups, tokens, P)
    each = codes.unsqueeze(-5).expand(*lead, heads, queries, -1, -1, -1, -1)
    return commuted_scores(tables, each, *turns).sum(-2)


def commutes(queries: int, tokens: int, stages: int, levels: int) -> bool:
    """Whether a KV head's scores take less work from tables of its queries: of one, where keys are over 2 * R * L."""
    tables, keys = (sum(scores_work(queries, tokens, stages, levels, commuted)) for commuted in (True, False))
    return tables < keys


def _planes(theta: Tensor, q: Tensor) -> Tensor:
    """The codebook as it is, all x of a level before all y."""
    planes = theta.transpose(-1, -2)
    return torch.empty(planes.shape, dtype=_held_in(q), device=q.device).copy_(planes)


def _query_tables(theta: Tensor, q: Tensor) -> Tensor:
    """The same in the frame of one query a KV head: (..., kv_heads, groups, stages, levels, 2, P)."""
    from kvq_kernels.triton_ops.commuted import query_tables_kernel

    heads, groups, stages, levels, pairs, _ = theta.shape
    out = torch.empty(*q.shape[:-2], groups, stages, levels, 2, pairs, dtype=_held_in(q), device=q.device)
    entries, tile = stages * levels, TABLES.tokens
    run(
        query_tables_kernel,
        (out.shape[:-4].numel() * -(-entries // tile),),
        TABLES,
        {"q": q, "theta": theta.contiguous(), "tables": out, "heads": heads, "groups": groups, "entries": entries},
        {"PAIRS": pairs, "HP": max(16, power_of_two(pairs)), "BT": tile},
    )
    return out


def _held_in(q: Tensor) -> torch.dtype:
    return torch.float32 if q.dtype == torch.float32 else torch.float16


def codebook_values(
    p: Tensor, digits: Tensor, weights: Tensor, codebook: Tensor, scale: Tensor, path: Path = "auto"
) -> Tensor:
    """p (..., kv_heads, n, tokens) . values: float32 (..., kv_heads, n, head_dim), no value decoded.

    digits (..., tokens, ceil(Nc / 8)) uint8, the binary digits of a token's whole layer; weights (..., tokens): the
    stored norm over the norm of digits . codebook; codebook (Nc, kv_heads * head_dim), scale (kv_heads * head_dim,).
    """
    *lead, heads, queries, tokens = p.shape
    count = codebook.shape[0]
    large = None if heads * queries <= 128 else f"{heads * queries} query heads are more than 128"
    lines = p.flatten(-3, -2)  # (..., kv_heads * n, tokens)
    if use_triton("codebook_values", path, p, large):
        sums = _digit_sums(lines, digits, weights, count)
    else:
        sums = (lines.float() * weights.float().unsqueeze(-2)) @ unpack(digits, 1, count).float()
    book = (codebook.float() * scale.float()).unflatten(-1, (heads, -1)).transpose(0, 1)  # (kv_heads, Nc, head_dim)
    return sums.view(*lead, heads, queries, count) @ book


def _digit_sums(p: Tensor, digits: Tensor, weights: Tensor, count: int) -> Tensor:
    from kvq_kernels.triton_ops.commuted import digit_sums_kernel

    *lead, lines, tokens = p.shape
    rows = p.shape[:-2].numel()
    tile, wide = VALUES.tokens, 64
    columns = -(-count // wide)
    chunk, splits = split_tokens(tokens, tile, columns * rows, p)
    out = torch.empty(splits, *lead, lines, count, dtype=torch.float32, device=p.device)
    sizes = {"lines": lines, "tokens": tokens, "count": count, "chunk": chunk, "rows": rows, "size": digits.shape[-1]}
    run(
        digit_sums_kernel,
        (rows, splits, columns),
        VALUES,
        {
            "p": p.contiguous(), "digits": digits.contiguous(), "weights": weights.contiguous(), "out": out, **sizes,
        },
        {"M": max(16, power_of_two(lines)), "BT": tile, "N": wide, "DTYPE": compute_type(p)},
    )  # fmt: skip
    return out.sum(0)
