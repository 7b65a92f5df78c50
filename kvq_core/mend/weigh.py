"""What an edit of a layer is expected to cost and to gain, head by head, in variances of attention scores.

A score's error counts as far as it differs among the keys a query attends to: what all scores of a query move by, the
softmax does not see. So both the error that a format makes and that which a bias left out makes are variances under
the query's own attention weights, means over queries and the heads of a group, and can be added.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvq_core.mend.edit import Edit
from kvq_core.mend.formats import CacheFormat
from kvq_core.mend.passes import Editing, ReferencePass
from kvq_core.models import LoadedModel
from kvq_core.models.pairs import Pairs

Exponents = Sequence[tuple[float, float]]
TOO_MUCH = 4.0  # of a variance in squared nats: pairs after one that costs as much are not looked at
EXPONENTS = ((0.0, 0.0), *((a, b) for a in (0.25, 0.5, 0.75, 1.0) for b in (0.0, 0.25, 0.5)))  # of keys, of queries
EVEN = (0.5, 0.5)
FURTHEST = 32.0  # times as large, or as small, as the mean of its head, that an s may be


@dataclass(frozen=True)
class BiasCosts:
    """Of one layer: pairs in the order they are left out, slowest first, and by how many of them (0, 1/2, 1, 3/2, ...)
    the variance that leaving them out adds to scores: (candidates, kv_heads)."""

    order: list[int]
    variance: Tensor

    def keep(self, candidate: int, pairs: Pairs) -> Tensor:
        """What stays of each channel's bias (head_dim,)."""
        part = torch.ones(len(pairs.theta))
        part[self.order[: candidate // 2]] = 0.0
        if candidate % 2:
            part[self.order[candidate // 2]] = 0.5
        return pairs.spread(part)


def attention(model: LoadedModel, reference: ReferencePass, layer: int) -> Tensor:
    """Weights (kv_heads, groups, scored, tokens) of the last queries."""
    how = model.scoring[layer]
    assert how is not None
    keys, queries = reference.keys[layer], reference.queries[layer]
    grouped = queries.unflatten(0, (len(keys), -1))
    scores = how.capped_(grouped @ keys[:, None].mT * how.scaling)
    return how.softmax(scores.masked_fill_(how.unseen(queries.shape[1], keys.shape[1], keys.device), float("-inf")))


def variance(weights: Tensor, error: Tensor) -> Tensor:
    """(kv_heads,): of errors of scores, under the weights, both (kv_heads, groups, scored, tokens)."""
    mean = (weights * error).sum(-1, keepdim=True)  # taken off before squaring: it may be a thousand times the rest
    return (weights * (error - mean).square()).sum(-1).mean((1, 2))


def bias_costs(model: LoadedModel, reference: ReferencePass, layer: int, pairs: Pairs) -> BiasCosts:
    """What leaving out biases of the slowest pairs costs at the reference's length."""
    assert model.key_bias is not None
    tokens, how = len(reference.ids), Editing(model, len(reference.ids))
    turned = how.turned(layer, model.key_bias[layer], 0, tokens)
    scaling = model.shape.scaling[layer]
    weights, queries = attention(model, reference, layer), reference.queries[layer].unflatten(0, (len(turned), -1))
    order = pairs.theta.argsort(stable=True).tolist()
    found, sofar = [torch.zeros(len(turned))], torch.zeros_like(weights)
    for pair in order:
        own = pairs.members(pair)
        moved = queries[..., own] @ turned[:, None, :, own].mT * scaling
        found += [variance(weights, sofar + moved / 2), variance(weights, sofar.add_(moved))]
        if found[-1].min() > TOO_MUCH:
            break
    return BiasCosts(order, torch.stack(found))


@dataclass
class LayerErrors:
    """The errors a format makes of one layer's scores, on what reference passes hold."""

    model: LoadedModel
    references: list[ReferencePass]
    form: CacheFormat
    layer: int

    def __post_init__(self) -> None:
        lengths = {len(each.ids) for each in self.references}
        self._ropes = {tokens: self.model.rope(tokens) for tokens in lengths}
        self._weights = [attention(self.model, each, self.layer) for each in self.references]

    def of(self, edit: Edit) -> Tensor:
        """(kv_heads,): the variance of their errors, against the same edit unquantized."""
        return torch.stack([self._of(edit, *both) for both in zip(self.references, self._weights, strict=True)]).mean(0)

    def _of(self, edit: Edit, reference: ReferencePass, weights: Tensor) -> Tensor:
        tokens = len(reference.ids)
        how, plain = (Editing(self.model, tokens, edit, form, self._ropes[tokens]) for form in (self.form, None))
        keys = how.keys(self.layer, reference.keys[self.layer], 0)
        stored, _ = how.stored(self.layer, keys, reference.values[self.layer])
        asked, exact = (x.queries(self.layer, reference.queries[self.layer]) for x in (how, plain))
        asked, exact = (x.unflatten(0, (len(keys), -1)) for x in (asked, exact))
        error = (asked @ stored[:, None].mT - exact @ keys[:, None].mT) * self.model.shape.scaling[self.layer]
        return variance(weights, error)

    def scales(self, edit: Edit, pairs: Pairs, shared: bool, exponents: Exponents) -> list[Tensor]:
        """Of each of ``exponents`` (a, b) the scales (kv_heads, head_dim): rms of a pair's keys ^ a / rms of its
        queries ^ b, mean log 0 over a head; ``shared``: one for all heads."""
        squares = torch.stack([self._key_power(edit, reference) for reference in self.references]).mean(0)
        asked = torch.stack([reference.power[self.layer] for reference in self.references]).mean(0)
        asked = asked.unflatten(0, (len(squares), -1)).mean(1)
        count = pairs.sums(torch.ones(squares.shape[-1]))
        logs = [(pairs.sums(x) / count).clamp_min(1e-12).log() / 2 for x in (squares, asked)]
        if shared:
            logs = [x.mean(0, keepdim=True).expand_as(x) for x in logs]
        bound = torch.tensor(FURTHEST).log()
        found = []
        for a, b in exponents:
            mean = a * logs[0] - b * logs[1]
            mean = mean - (mean * count).sum(-1, keepdim=True) / count.sum()
            found.append(pairs.spread(mean.clamp(-bound, bound)).exp())
        return found

    def _key_power(self, edit: Edit, reference: ReferencePass) -> Tensor:
        tokens = len(reference.ids)
        how = Editing(self.model, tokens, edit.without_fold(), None, self._ropes[tokens])
        return how.keys(self.layer, reference.keys[self.layer], 0).square().mean(-2)
