"""Which biases are left out and which scales are folded, for one model, format and context.

Head by head by expected variances of scores (``weigh``), then as a whole by KLD on calibration texts: how far biases
are left out by what that costs in full precision at the context, and whether each edit helps at all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kvq_core.machine.progress import Progress, Report
from kvq_core.mend.edit import Edit
from kvq_core.mend.fold import mendable_layers
from kvq_core.mend.formats import CacheFormat
from kvq_core.mend.passes import ReferencePass
from kvq_core.mend.weigh import EVEN, EXPONENTS, BiasCosts, LayerErrors, bias_costs
from kvq_core.models import LoadedModel
from kvq_core.models.pairs import Pairs

WEIGHTS = (1.0, 4.0, 16.0, 64.0, 256.0)  # of a bias left out against what the format errs, tried from bold to careful
SHARE = 5  # in full precision the edit may cost a fifth of what the format still loses
MARGIN = 2.0  # for what replays leave out: errors of the earlier tokens' own passes
LEAST_GAIN = 1.1  # of a layer's variance by its scales, below which they are left out
HELPS = 0.97  # of the KLD without an edit: it has to be below
ERRING = 3  # texts by which errors of scores are weighed; KLD takes all


@dataclass
class Chosen:
    """An edit; by layer, how many times smaller the variance of score errors is with its scales; what was measured on
    the calibration texts."""

    edit: Edit
    pairs: dict[int, Pairs]
    gains: dict[int, float]
    before: float
    after: float
    full_precision: dict[int, float]  # by length


@dataclass(frozen=True)
class Table:
    """Of one layer what leaving out biases costs and, by the same candidates (candidates, kv_heads), the variance of
    errors that the format makes of scores: as they are, and with ``scales`` (kv_heads, head_dim) of each candidate
    where that is less."""

    layer: int
    costs: BiasCosts
    plain: Tensor
    scaled: Tensor
    scales: list[Tensor]

    @classmethod
    def of(cls, held: LayerErrors, costs: BiasCosts, none: Edit, pairs: Pairs) -> "Table":
        """Candidates that leave half a pair's bias are taken to err as the mean of those beside them."""
        plain, scaled, scales = [], [], list[Tensor]()
        for candidate in range(0, len(costs.variance), 2):
            edit = none.with_keep(held.layer, costs.keep(candidate, pairs))
            [scale] = held.scales(edit, pairs, False, [EVEN])
            errors = [held.of(each) for each in (edit, edit.with_scales(held.layer, scale))]
            helped = errors[1] < errors[0]
            plain.append(errors[0])
            scaled.append(errors[1].minimum(errors[0]))
            scales += [scale.where(helped[:, None], torch.ones_like(scale))] * 2
        both = [_with_halves(torch.stack(each)) for each in (plain, scaled)]
        return cls(held.layer, costs, both[0], both[1], scales)

    def pick(self, weight: float, fold: bool) -> list[int]:
        """Of each head the candidate with the least sum of both."""
        picked: list[int] = ((self.scaled if fold else self.plain) + weight * self.costs.variance).argmin(0).tolist()
        return picked


def _with_halves(every: Tensor) -> Tensor:
    """(n, heads) -> (2 n - 1, heads): means between neighbours."""
    found = every.repeat_interleave(2, 0)[:-1].clone()
    found[1::2] = (every[1:] + every[:-1]) / 2
    return found


@dataclass
class Choosing:
    """The choice for one model. ``short``: texts that the format is weighed on; ``long``: beginnings of one text, the
    last as long as the context, on which the edit must cost little in full precision; ``allow``: nats at most."""

    model: LoadedModel
    form: CacheFormat
    short: list[ReferencePass]
    long: list[ReferencePass]
    allow: float
    report: Report
    only: Literal["biases", "folded"] | None = None

    def __post_init__(self) -> None:
        shape = self.model.shape
        rope = self.model.rope(2)
        self._layers = mendable_layers(self.model)
        self._pairs = {layer: Pairs.of_rope(rope, layer) for layer in self._layers}
        self._none = Edit.none(shape.layers, shape.kv_heads, shape.head_dim)

    def choose(self) -> Chosen:
        """The edit that helps most on the calibration texts; one that changes nothing where none helps."""
        before = self._loss(self._none)
        best, after, gains = self._none, before, dict[int, float]()
        tables = [] if self.only == "folded" else list(self._tables())
        for fold in {"biases": (False,), "folded": (True,), None: (False, True)}[self.only]:
            edit, loss = self._biases(tables, fold, before) if tables else (self._none, before)
            found: dict[int, float] = {}
            if fold:
                edit, found = self._folded(edit)
                loss = self._loss(edit)
            if loss < HELPS * after and self._is_allowed(edit, loss):
                best, after, gains = edit, loss, found
        full = {len(each.ids): each.replay(self.model, best, None).mean for each in self.long}
        return Chosen(best, self._pairs, gains, before, after, full)

    def _loss(self, edit: Edit) -> float:
        return sum(each.replay(self.model, edit, self.form).mean for each in self.short) / len(self.short)

    def _biases(self, tables: list[Table], fold: bool, before: float) -> tuple[Edit, float]:
        """How far biases are left out, of heads that are scaled as well where ``fold``: of the weights the one with the
        least loss among those that are allowed."""
        best, least = self._none, before
        for number, weight in enumerate(WEIGHTS):
            self.report(Progress("Trying biases", number + fold * len(WEIGHTS), 2 * len(WEIGHTS)))
            keep, scale = self._none.keep.clone(), self._none.scale.clone()
            for table in tables:
                for head, pick in enumerate(table.pick(weight, fold)):
                    keep[table.layer, head] = table.costs.keep(pick, self._pairs[table.layer])
                    if fold:
                        scale[table.layer, head] = table.scales[pick][head]
            edit = Edit(keep, scale)
            if not edit.drops:
                break
            loss = self._loss(edit)
            if loss < min(least, HELPS * before) and self._is_allowed(edit, loss):
                best, least = edit, loss
        return best, least

    def _is_allowed(self, edit: Edit, loss: float) -> bool:
        """Whether it costs little enough in full precision, at every length."""
        if not edit.drops:
            return True
        most = min(self.allow, loss / SHARE) / MARGIN
        return all(each.replay(self.model, edit, None).mean < most for each in reversed(self.long))

    def _tables(self) -> Iterator[Table]:
        if self.model.key_bias is None or not bool(self.model.key_bias.any()):
            return
        for number, layer in enumerate(self._layers):
            self.report(Progress("Weighing biases", number, len(self._layers), "layers"))
            costs = bias_costs(self.model, self.long[-1], layer, self._pairs[layer])
            held = LayerErrors(self.model, self.short[:ERRING], self.form, layer)
            yield Table.of(held, costs, self._none, self._pairs[layer])

    def _folded(self, edit: Edit) -> tuple[Edit, dict[int, float]]:
        """The edit with scales: of every head the exponents with the least error, of heads that share gains of all; and
        by layer what that gains."""
        edit = edit.without_fold()
        scale, gains = edit.scale.clone(), dict[int, float]()
        for number, (layer, own) in enumerate(self._layers.items()):
            self.report(Progress("Weighing scales", number, len(self._layers), "layers"))
            held = LayerErrors(self.model, self.short[:ERRING], self.form, layer)
            every = held.scales(edit, self._pairs[layer], own.shared, EXPONENTS)
            errors = torch.stack([held.of(edit.with_scales(layer, each)) for each in every])
            at = errors.mean(1).argmin().expand(len(every[0])) if own.shared else errors.argmin(0)
            gain = errors[0].sum() / errors.gather(0, at[None]).sum().clamp_min(1e-30)
            if gain > LEAST_GAIN:
                scale[layer] = torch.stack([every[pick][head] for head, pick in enumerate(at.tolist())])
                gains[layer] = round(gain.item(), 3)
        return Edit(edit.keep, scale), gains
