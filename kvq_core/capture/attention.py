"""Attention itself at a few steps of forced rows: its change, its sinks, the error by depth, the rows to look at."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvq_core.capture.scores import Extent, span, weights_of
from kvq_core.engine.divergence import kl_divergence
from kvq_core.engine.tap import StepScores
from kvq_core.models.scoring import Scoring

SINKS = 4  # first tokens whose attention mass is followed
DEPTHS = 16  # buckets of key position, at most
STEPS = {"normal": 16, "deep": 64}  # steps looked at, by level of detail, at most
ROW_BYTES = 10_000_000  # of all rows' stored attention together


@dataclass(frozen=True)
class Buckets:
    """Key positions 0 .. tokens-1 in equal pieces."""

    width: int
    tokens: int

    @classmethod
    def of(cls, tokens: int, most: int) -> "Buckets":
        return cls(max(1, -(-tokens // most)), tokens)

    @property
    def count(self) -> int:
        return max(1, -(-self.tokens // self.width))

    @property
    def edges(self) -> list[int]:
        return [min(b * self.width, self.tokens) for b in range(self.count + 1)]

    def sums(self, x: Tensor) -> Tensor:
        """Sums of x (..., positions) in each bucket: (..., count); positions not there yet add nothing."""
        whole = pad(x, (0, self.count * self.width - x.shape[-1])).unflatten(-1, (self.count, self.width))
        return whole @ whole.new_ones(self.width)  # a few numbers each: several times faster than ``sum`` on a CPU


class AttentionTap:
    """Sees every decode step's scores (engine.tap.Tap) and looks at evenly spaced ones.

    Attention is what a row really attends to: keys its cache leaves out have none. For each step looked at:
    KL(reference || lane) of the attention, the mass on the first tokens, the mean |score delta| over the positions the
    lane holds quantized with the reference's query, which isolates the keys' error, centred and as it is, and for the
    lanes to be drawn the mass in every position bin. A row that leaves keys out makes that KL infinite, so it has
    KL(lane || reference), which is -ln of the reference's mass on the keys read where the scores are right. |Centred
    score delta| by depth is over all keys, read or not.
    """

    def __init__(
        self,
        extent: Extent,
        steps: int,
        layers: list[int],
        heads: list[int],
        bins: Buckets,
        device: torch.device | str = "cpu",
    ):
        """``steps``: how many are looked at, at most; fewer where their rows would take more than ROW_BYTES.
        ``device``: where it gathers what it sees, see ``scores.to_host``."""
        e, self.bins = extent, bins
        self.layers, self.heads = layers, heads
        drawn = 1 + e.drawn  # the reference's as well
        room = ROW_BYTES // max(1, max(drawn, e.whole) * len(layers) * len(heads) * bins.count)
        count = max(1, min(steps, e.steps, room))
        self.steps = sorted({i * (e.steps - 1) // max(1, count - 1) for i in range(count)}) if e.steps else []
        self.depths = Buckets.of(e.tokens, DEPTHS)
        shape = (len(self.steps), e.layers, e.query_heads)
        self.kl = torch.zeros(e.lanes, *shape, device=device)
        self.sink_mass = torch.zeros(1 + e.lanes, *shape, device=device)
        self.reference_query = torch.zeros(e.lanes, *shape, device=device)
        self.uncentred = torch.zeros(e.lanes, *shape, device=device)
        self.by_depth = torch.zeros(e.lanes, e.layers, e.query_heads, self.depths.count, device=device)
        self.seen = torch.zeros(self.depths.count)  # keys seen in each bucket, over the steps
        rows = drawn, len(self.steps), len(layers), len(heads), bins.count
        self.rows = torch.zeros(rows, dtype=torch.uint8, device=device)
        self.first = min(e.looked, default=0)
        self._row_of = {layer: i for i, layer in enumerate(layers)}
        self._every_head = heads == list(range(e.query_heads))
        self._at = {step: i for i, step in enumerate(self.steps)}
        self.step = 0

    def advance(self, fresh: int) -> None:
        """Call after a step of ``fresh`` tokens."""
        self.step += fresh

    @property
    def captured_steps(self) -> list[int]:
        """The steps looked at so far."""
        return [step for step in self.steps if step < self.step]

    def looks(self, fresh: int) -> bool:
        """Whether one of the coming ``fresh`` scored positions is looked at."""
        return any(self.step + i in self._at for i in range(fresh))

    def scores(self, seen: StepScores, quantized: list[tuple[int, int]]) -> None:
        """``quantized``: the range of key positions each lane holds quantized, as scores.ScoreTap.begin has it."""
        fresh, tokens = seen.own.shape[-2:]
        for i in range(fresh):
            at = self._at.get(self.step + i)
            if at is None:
                continue
            visible = slice(tokens - fresh + i + 1)
            weights = weights_of(quantized, tokens, seen.own.device)[:, 0, :, visible]
            # a core's cache holds those of a layer; a GPU pays for launches
            for some in seen.split(1 if seen.own.device.type == "cpu" else len(seen.layers)):
                self._look(some, at, i, visible, weights)

    def _look(self, seen: StepScores, at: int, i: int, visible: slice, weights: Tensor) -> None:
        """At the i-th token of ``seen``, the step ``at`` of those looked at. Where sinks stand in the softmax, as one
        position more, the divergence is over it, too."""
        assert seen.with_reference_query is not None  # ``looks`` was asked
        layers, device = span(seen.layers), self.kl.device
        own, other = (x[..., i, visible] for x in (seen.own, seen.with_reference_query))
        log = torch.log_softmax(_with_sinks(own, seen.sinks), -1)  # (layers, 1 + lanes, query_heads, positions)
        mass = log.exp()[..., : own.shape[-1]]
        kl = kl_divergence(log[:, :1], log[:, 1:])
        for n, row, read in ((n, *each) for n, reads in enumerate(seen.reads) for each in reads.items()):
            left_out = ~read[:, visible].repeat_interleave(own.shape[2] // len(read), 0)
            scores = own[n, row].masked_fill(left_out, float("-inf"))
            leaving = torch.log_softmax(_with_sinks(scores[None], seen.sinks[n : n + 1])[0], -1)
            mass[n, row] = leaving.exp()[..., : own.shape[-1]]
            kl[n, row - 1] = kl_divergence(leaving, log[n, 0])

        def keep(where: Tensor, values: Tensor) -> None:
            where[:, at, layers] = values.transpose(0, 1).to(device)

        keep(self.kl, kl)
        keep(self.sink_mass, mass[..., :SINKS].sum(-1))
        by_depth = self.depths.sums(_centred_size(own[:, 1:] - own[:, :1]))
        self.by_depth[:, layers] += by_depth.transpose(0, 1).to(device)
        if self.first in seen.layers:
            self.seen += self.depths.sums(torch.ones(own.shape[-1]))
        drawn = [n for n, layer in enumerate(seen.layers) if layer in self._row_of]
        if drawn:
            some = mass[span(drawn), : len(self.rows)]
            pooled = self.bins.sums(some if self._every_head else some[:, :, self.heads])
            shown = pooled.clamp_(0, 1).sqrt_().mul_(255).round_().to(torch.uint8)
            drawn = [self._row_of[seen.layers[n]] for n in drawn]
            self.rows[:, at, span(drawn)] = shown.transpose(0, 1).to(device)
        delta, count = other[:, 1:] - own[:, :1], weights.sum(-1)
        keep(self.uncentred, delta.abs().mul_(weights).sum(-1) / count)
        keep(self.reference_query, _centred_size(delta).mul_(weights).sum(-1) / count)

    def of_reference(self) -> dict[str, Tensor]:
        """Arrays of the reference, named as in the record."""
        count = len(self.captured_steps)
        return {"sink_mass": self.sink_mass[0, :count], "attention_rows": self.rows[0, :count]}

    def of_lane(self, lane: int) -> dict[str, Tensor]:
        """Arrays of a forced row, named as in the record."""
        count = len(self.captured_steps)
        found = {
            "attention_kl": self.kl[lane, :count],
            "delta_by_keys": self.reference_query[lane, :count].half(),
            "uncentred_by_keys": self.uncentred[lane, :count].half(),
            "sink_mass": self.sink_mass[1 + lane, :count] - self.sink_mass[0, :count],
            "depth_score_error": self.by_depth[lane] / self.seen.clamp_min(1),
        }
        if 1 + lane < len(self.rows):
            found["attention_rows"] = self.rows[1 + lane, :count]
        return found


def _with_sinks(scores: Tensor, sinks: Sequence[Tensor | None]) -> Tensor:
    """scores (layers, ..., query_heads, positions) and, where any layer has sinks (query_heads,), one position more."""
    if all(own is None for own in sinks):
        return scores
    none = scores.new_full(scores.shape[-2:-1], float("-inf"))
    stacked = torch.stack([none if own is None else own.float() for own in sinks])
    wide = stacked.view(len(sinks), *[1] * (scores.dim() - 3), -1, 1)
    return torch.cat([scores, wide.expand(*scores.shape[:-1], 1)], -1)


def _centred_size(delta: Tensor) -> Tensor:
    """|delta less its mean over positions (last)|; changes ``delta``."""
    return delta.sub_(delta.mean(-1, keepdim=True)).abs_()


def last_attention(queries: Tensor, keys: Tensor, how: Scoring) -> Tensor:
    """Attention weights of the newest queries (query_heads, n, head_dim) over all keys (kv_heads, tokens, head_dim),
    causal, as the layer scores: (query_heads, n, tokens)."""
    n, tokens = queries.shape[1], keys.shape[1]
    grouped = queries.unflatten(0, (len(keys), -1))
    scores = how.capped_(grouped @ keys.unsqueeze(1).transpose(-1, -2) * how.scaling)
    future = torch.ones(n, tokens, dtype=torch.bool, device=scores.device).triu(tokens - n + 1)
    behind = how.newest_behind(n, tokens, scores.device)
    future = future if behind is None else future | behind
    return how.softmax(scores.masked_fill_(future, -torch.inf)).flatten(0, 1)
