"""How far a lane's next-token distributions are from the reference's on the same tokens."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvq_core.engine.divergence import divergence_and_overlap
from kvq_core.record.fields import Interval

TOPK = 5
NEAR_TIE = 0.2  # logits: the reference's two best tokens are less than a factor 1.22 apart


class Fidelity:
    """Collects per scored position what the metrics are computed from; logits at temperature 1, float32, nats."""

    def __init__(self, lanes: int, floors: int = 1):
        """``lanes``: rows beside the reference's, of which the last ``floors`` quantize nothing."""
        self.floors = min(lanes, floors)
        self._columns: dict[str, list[Tensor]] = {}
        self.lanes = lanes
        self.n_scored = 0

    def __call__(self, reference: Tensor, lanes: Tensor, targets: list[int], own: Tensor | None = None) -> None:
        """reference (n, vocabulary), lanes (lanes, n, vocabulary), the n tokens that follow. ``own`` (n, vocabulary):
        of the lanes' model in full precision, where the reference is another file."""
        self.n_scored += len(targets)
        p_log = torch.log_softmax(reference, -1)
        q_log = torch.log_softmax(lanes, -1)
        follow = torch.tensor(targets, device=reference.device)[:, None]
        # the least of a row is not finite where any of it is not, and takes a tenth of the time of asking them all
        self._put("finite", q_log.amin(-1) > -torch.inf)
        kld, acceptance = divergence_and_overlap(p_log, q_log)
        self._put("kld", kld)
        self._put("acceptance", acceptance)
        lane_log = q_log.gather(-1, follow.expand(self.lanes, -1, -1))[..., 0]
        log = p_log.gather(-1, follow)[..., 0]
        self._put("nll", -lane_log)
        self._put("delta_p", lane_log.exp() - log.exp())
        top = torch.topk(q_log, TOPK, -1)
        base = torch.topk(p_log, TOPK, -1)
        self._put("same_top", (top.indices[..., 0] == base.indices[..., 0]).to(torch.uint8))
        self._put("topk_ids", top.indices.int())
        self._put("topk_probs", top.values.exp())
        self._put("reference/nll", -log)
        self._put("reference/margin", base.values[..., 0] - base.values[..., 1])
        self._put("reference/topk_ids", base.indices.int())
        self._put("reference/topk_probs", base.values.exp())
        # how far what quantizes nothing moves the gap between the reference's two best tokens
        best = base.values[..., :2] if own is None else own.gather(-1, base.indices[..., :2])
        gap = best[..., 0] - best[..., 1]
        pair = q_log[self.lanes - self.floors :].gather(-1, base.indices[None, :, :2].expand(self.floors, -1, -1))
        shift = (pair[..., 0] - pair[..., 1] - gap).abs()
        self._put("floor_shift", shift.amax(0) if self.floors else gap.abs())

    def _put(self, name: str, values: Tensor) -> None:
        self._columns.setdefault(name, []).append(values)  # where it was computed: a GPU would be waited for

    def column(self, name: str, lane: int | None = None) -> Tensor:
        """All positions of a column: (positions, ...), of one lane where it is a lane's."""
        parts = self._columns.get(name, [])
        if not parts:
            return torch.zeros(0, TOPK) if "topk" in name else torch.zeros(0)
        return torch.cat(parts if lane is None else [part[lane] for part in parts], 0).cpu()

    def latest(self, name: str, lane: int, scored: int) -> list[float]:
        """One lane's values from position ``scored`` on."""
        count, found, parts = self.n_scored - scored, list[float](), self._columns[name]
        for at in reversed(range(len(parts))):
            if len(found) >= count:
                break
            parts[at] = parts[at].cpu()  # once for all lanes
            found = parts[at][lane].tolist() + found
        return found[len(found) - count :]

    @property
    def not_finite(self) -> list[bool]:
        """Of each lane, whether any of its logits was infinite or none."""
        return [not self.column("finite", lane).all() for lane in range(self.lanes)]

    def near_tie_margin(self) -> float:
        """Reference margins up to this count as near-ties: NEAR_TIE logits, or the floors' own largest shift."""
        shift = self.column("floor_shift")
        return max(NEAR_TIE, shift.max().item() if len(shift) else 0.0)


@dataclass(frozen=True)
class _Mean:
    """Mean and its standard error, sqrt(population variance / (n - 1)) as llama-perplexity computes it."""

    value: float
    se: float | None

    @classmethod
    def of(cls, x: np.ndarray) -> "_Mean":
        return cls(float(x.mean()), float(x.std() / math.sqrt(len(x) - 1)) if len(x) > 1 else None)

    def interval(self) -> Interval:
        return Interval(value=self.value, se=self.se)


_KLD_RANKS = (99.9, 99, 95, 90, 50, 10, 5, 1, 0.1)
_DELTA_RANKS = (99.9, 99, 95, 90, 75, 50, 25, 10, 5, 1, 0.1)


def perplexity_block(nll: Tensor, base: Tensor, kld: Tensor, delta_p: Tensor, same_top: Tensor) -> dict[str, Interval]:
    """The report of ``llama-perplexity --kl-divergence``, names and order as there; all (positions,), in nats.

    Probabilities and same-top shares are in percent. Empty without positions.
    """
    if not len(nll):
        return {}
    q, b, kl, dp, same = (t.double().numpy() for t in (nll, base, kld, delta_p, same_top))
    return {**_ppl_lines(q, b), **_kld_lines(kl), **_delta_lines(100 * dp), "Same top p": _share(same)}


def _ppl_lines(q: np.ndarray, b: np.ndarray) -> dict[str, Interval]:
    n = len(q)
    mq, mb = _Mean.of(q), _Mean.of(b)
    ppl_q, ppl_b = math.exp(mq.value), math.exp(mb.value)
    ratio = _Mean.of(q - b)
    lines = {"Mean PPL(Q)": Interval(value=ppl_q, se=_times(ppl_q, mq.se))}
    lines["Mean PPL(base)"] = Interval(value=ppl_b, se=_times(ppl_b, mb.se))
    # covariance of the two means; correlation is undefined where one of them does not vary
    cov = float(((q - q.mean()) * (b - b.mean())).mean() / (n - 1)) if n > 1 else None
    if cov is not None and mq.se and mb.se:
        lines["Cor(ln(PPL(Q)), ln(PPL(base)))"] = Interval(value=cov / (mq.se * mb.se), se=None)
    lines["Mean ln(PPL(Q)/PPL(base))"] = ratio.interval()
    lines["Mean PPL(Q)/PPL(base)"] = Interval(value=math.exp(ratio.value), se=_times(math.exp(ratio.value), ratio.se))
    spread = None
    if cov is not None and mq.se is not None and mb.se is not None:
        spread = math.sqrt(max(0.0, (ppl_q * mq.se) ** 2 + (ppl_b * mb.se) ** 2 - 2 * ppl_q * ppl_b * cov))
    lines["Mean PPL(Q)-PPL(base)"] = Interval(value=ppl_q - ppl_b, se=spread)
    return lines


def _times(factor: float, se: float | None) -> float | None:
    return None if se is None else factor * se


def _kld_lines(kl: np.ndarray) -> dict[str, Interval]:
    lines = {"Mean KLD": _Mean.of(kl).interval(), "Maximum KLD": Interval(value=float(kl.max()), se=None)}
    for rank in _KLD_RANKS:
        name = "Median KLD" if rank == 50 else f"{rank:g}% KLD"
        lines[name] = Interval(value=float(np.percentile(kl, rank)), se=None)
    lines["Minimum KLD"] = Interval(value=float(kl.min()), se=None)
    return lines


def _delta_lines(dp: np.ndarray) -> dict[str, Interval]:
    lines = {"Mean Δp": _Mean.of(dp).interval(), "Maximum Δp": Interval(value=float(dp.max()), se=None)}
    for rank in _DELTA_RANKS:
        name = "Median Δp" if rank == 50 else f"{rank:g}% Δp"
        lines[name] = Interval(value=float(np.percentile(dp, rank)), se=None)
    lines["Minimum Δp"] = Interval(value=float(dp.min()), se=None)
    squares = _Mean.of(dp**2)
    rms = math.sqrt(squares.value)
    lines["RMS Δp"] = Interval(value=rms, se=squares.se / (2 * rms) if squares.se is not None and rms > 0 else None)
    return lines


def _share(same: np.ndarray) -> Interval:
    share, n = float(same.mean()), len(same)
    return Interval(value=100 * share, se=100 * math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else None)
