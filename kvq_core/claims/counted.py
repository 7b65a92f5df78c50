"""What is counted before anything runs: bytes of keys that are stored and read (SVDq, Tables 2, 3 and 6), and the
multiplications and additions of scores through commuted codebooks (CommVQ, Eq. 19)."""

from typing import Any

import torch
from kvq_kernels.rope_codebook import commuted_scores, decode_pairs, score_tables
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvq_core.claims.measures import Context, Measure, Numbers
from kvq_core.frozen import Frozen
from kvq_core.methods.svdq.selection import Sparsity
from kvq_core.shape import LayerKind
from kvq_core.sizing.count import FP16, tensor_bytes
from kvq_core.spec import Lane


class PrintedRatio(Frozen):
    """A row of a paper's table: SVDq's schedule on a layer of ``kv_heads`` of ``head_dim`` channels over a prompt of
    ``tokens``, of which a step chooses ``budget`` or reads all, and the compression ratio that is printed for it."""

    name: str
    kv_heads: int
    head_dim: int = 128
    tokens: int
    schedule: tuple[int, ...]
    budget: int = 0
    printed: float


class KeyRatios(Measure):
    """How many times fewer bytes of keys than fp16's: ``chosen``, the codes of the tokens that a step chooses, alone;
    ``read``, all that it reads, and ``stored``, by the byte counter: what is read is what is stored but for the codes
    of tokens that a step leaves out."""

    reads_texts = False
    rows: tuple[PrintedRatio, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return ("printed", "stored", "read", "chosen")

    def cases(self, context: Context) -> dict[str, Numbers]:
        return {row.name: _ratios(row) for row in self.rows}


def _ratios(row: PrintedRatio) -> Numbers:
    kind = LayerKind(kind="full", kv_heads=row.kv_heads, key_dim=row.head_dim, value_dim=row.head_dim)
    channels = row.kv_heads * row.head_dim
    knobs: dict[str, Any] = {"schedule": row.schedule}
    unread = 0
    if row.budget:
        knobs["sparsity"] = {"budget_tokens": row.budget}
        sparse = Sparsity(budget_tokens=row.budget)
        unread = sparse.chunks(row.tokens) * sparse.chunk_size - row.budget
    stored = tensor_bytes(Lane(method="svdq", tensors="keys", knobs=knobs), "keys", kind, row.tokens)
    codes = channels * sum(row.schedule) / len(row.schedule) / 8  # bytes of a token
    plain = FP16 * channels * row.tokens
    compressed = {"stored": stored, "read": stored - unread * codes, "chosen": (row.budget or row.tokens) * codes}
    return {"printed": row.printed} | {name: plain / size for name, size in compressed.items()}


class CommutedCounts(Measure):
    """Multiplications and additions of one KV head's scores at a step, counted while the operations run on tensors that
    hold no numbers: ``decoded``, keys summed up from their codes once for all queries, turned and multiplied, and
    ``commuted``, through each query's own tables (Eq. 19)."""

    reads_texts = False
    tokens: tuple[int, ...]
    queries: int  # heads that share the KV head
    pairs: int
    stages: int
    levels: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{way}.{what}" for way in ("decoded", "commuted") for what in ("multiplications", "additions"))

    def cases(self, context: Context) -> dict[str, Numbers]:
        return {f"{tokens:,} tokens": self._counts(tokens) for tokens in self.tokens}

    def _counts(self, tokens: int) -> Numbers:
        with torch.device("meta"):
            query, turn = torch.empty(self.queries, 2 * self.pairs), torch.empty(tokens, self.pairs)
            theta = torch.empty(self.stages, self.levels, self.pairs, 2)
            codes = torch.empty(tokens, self.stages, 2, dtype=torch.uint8)
        with _Counting() as decoded:
            x, y = decode_pairs(codes, theta).chunk(2, -1)
            query @ torch.cat([x * turn - y * turn, x * turn + y * turn], -1).T
        with _Counting() as commuted:
            commuted_scores(score_tables(query, theta), codes.expand(self.queries, -1, -1, -1), turn, turn)
        both = {"decoded": decoded, "commuted": commuted}
        return {f"{way}.{what}": float(getattr(found, what)) for way, found in both.items() for what in _COUNTED}


_COUNTED = ("multiplications", "additions")


class _Counting(TorchDispatchMode):
    """Counts floating-point multiplications and additions of what runs within it."""

    def __init__(self) -> None:
        super().__init__()
        self.multiplications = self.additions = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out, name = func(*args, **(kwargs or {})), str(func.__name__).partition(".")[0]
        if isinstance(out, Tensor) and not out.is_floating_point():
            return out  # positions of rows
        if name == "mul":
            self.multiplications += out.numel()
        elif name in ("add", "sub"):
            self.additions += out.numel()
        elif name == "sum":
            self.additions += args[0].numel() - out.numel()
        elif name in ("mm", "bmm"):
            self.multiplications += out.numel() * args[0].shape[-1]
            self.additions += out.numel() * (args[0].shape[-1] - 1)
        elif "embedding_bag" in name:
            self.additions += _rows_added(out[0], args[1])
        return out


def _rows_added(bags: Tensor, indices: Tensor) -> int:
    """Of bags (n, width), each the sum of as many rows."""
    return int((indices.numel() - bags.shape[0]) * bags.shape[-1])
