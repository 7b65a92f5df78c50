"""The policy of least predicted KLD under a budget of bytes.

Losses of single layers are added up, as AutoQuant of NVIDIA's ModelOpt does (``auto_quantize_kv_cache``); fp16 loses
nothing. Where losses are negative, which noise alone makes them, they count as none.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np

from kvq_core.errors import SpecError
from kvq_core.recommend.layer_plans import FP16, LayerPlan

Array = np.ndarray


@dataclass(frozen=True)
class Costs:
    """What every choice costs: ``names`` of the formats, FP16 the last; ``loss`` (2, layers, names), keys first, in
    nats, of one layer alone; ``nbytes``, the same shape, whole numbers."""

    names: tuple[str, ...]
    loss: Array
    nbytes: Array

    @property
    def layers(self) -> int:
        return int(self.loss.shape[1])

    def only(self, names: tuple[str, ...]) -> "Costs":
        """Of some of the formats; FP16 stays."""
        kept = [at for at, name in enumerate(self.names) if name in names or name == FP16]
        return Costs(tuple(self.names[at] for at in kept), self.loss[..., kept], self.nbytes[..., kept])

    def bytes_of(self, plan: LayerPlan) -> int:
        return int(self._sum(self.nbytes, plan))

    def predicted(self, plan: LayerPlan) -> float:
        """Nats."""
        return float(self._sum(np.maximum(self.loss, 0.0), plan))

    def budget(self, bits: float) -> int:
        """Bytes of so many bits an element, FP16 being 16."""
        return int(self.nbytes[..., self.names.index(FP16)].sum() * bits / 16)

    def _sum(self, what: Array, plan: LayerPlan) -> float:
        at = {name: index for index, name in enumerate(self.names)}
        chosen = np.array([[at[name] for name in names] for names in (plan.keys, plan.values)])
        return np.take_along_axis(what, chosen[..., None], -1).sum().item()


@dataclass(frozen=True)
class SolvedPolicy:
    """A policy; ``nbytes`` of TOKENS tokens, ``predicted`` in nats."""

    plan: LayerPlan
    nbytes: int
    predicted: float

    @classmethod
    def of(cls, plan: LayerPlan, costs: Costs) -> "SolvedPolicy":
        return cls(plan, costs.bytes_of(plan), costs.predicted(plan))


def free(costs: Costs, budget: int) -> SolvedPolicy:
    """Any format for the keys and any for the values of every layer. Raises SpecError where none fits the budget."""
    count = len(costs.names)
    rows = 2 * costs.layers
    loss, size = costs.loss.reshape(rows, count), costs.nbytes.reshape(rows, count)
    chosen = _choose(loss, size, budget)
    names = [costs.names[at] for at in chosen]
    return SolvedPolicy.of(LayerPlan(tuple(names[: costs.layers]), tuple(names[costs.layers :])), costs)


def skip_list(costs: Costs, budget: int) -> SolvedPolicy:
    """One format for keys and values, and layers that stay fp16 (vLLM). Raises SpecError where none fits."""
    plain, found = costs.names.index(FP16), []
    for at, name in enumerate(costs.names):
        pair = [at, plain]
        loss, size = costs.loss[..., pair].sum(0), costs.nbytes[..., pair].sum(0)
        if size.min(-1).sum() <= budget:
            own = tuple(name if chosen == 0 else FP16 for chosen in _choose(loss, size, budget))
            found.append(SolvedPolicy.of(LayerPlan(own, own), costs))
    return _best(found, budget)


def one_each(costs: Costs, budget: int) -> SolvedPolicy:
    """One format for all keys and one for all values (llama.cpp). Raises SpecError where none fits."""
    return _best(uniform(costs, budget), budget)


def uniform(costs: Costs, budget: int) -> list[SolvedPolicy]:
    """Every pair of a format for all keys and one for all values that fits, the least predicted loss first."""
    every = (LayerPlan.uniform(costs.layers, key, value) for key, value in product(costs.names, repeat=2))
    fitting = [solved for plan in every if (solved := SolvedPolicy.of(plan, costs)).nbytes <= budget]
    return sorted(fitting, key=_order)


def ends_apart(costs: Costs, budget: int) -> SolvedPolicy:
    """A format for the first layers, one for the last and one between, for keys and values apart (ik_llama.cpp). Raises
    SpecError where none fits."""
    fronts = [_front(costs, tensor) for tensor in range(2)]
    (keys, key_plans), (values, value_plans) = fronts
    best: tuple[float, int, int, int] | None = None
    for at, (size, loss) in enumerate(keys):  # sizes rise and losses fall along a front
        other = int(np.searchsorted(values[:, 0], budget - size, side="right")) - 1
        if other >= 0:
            told = (loss + values[other, 1], int(size + values[other, 0]), at, other)
            best = told if best is None else min(best, told)
    if best is None:
        raise _none_fits(costs, budget)
    return SolvedPolicy.of(LayerPlan(key_plans[best[2]], value_plans[best[3]]), costs)


def _front(costs: Costs, tensor: int) -> tuple[Array, list[tuple[str, ...]]]:
    """Bytes and losses of the choices for one tensor that no other beats in both, by bytes; and the choices."""
    layers, every = costs.layers, range(len(costs.names))
    loss = np.vstack([np.zeros(len(every)), np.maximum(costs.loss[tensor], 0).cumsum(0)])
    size = np.vstack([np.zeros(len(every)), costs.nbytes[tensor].cumsum(0)])
    first, last = (grid.ravel() for grid in np.meshgrid(range(layers + 1), range(layers + 1), indexing="ij"))
    inside = first + last <= layers
    first, last = first[inside], last[inside]
    found: list[Array] = []
    for a, b, c in product(every, repeat=3):
        told = [
            t[first, a] + t[layers - last, b] - t[first, b] + t[layers, c] - t[layers - last, c] for t in (size, loss)
        ]
        found.append(np.column_stack([*told, first, last, *np.broadcast_to([[a, b, c]], (len(first), 3)).T]))
    rows = np.concatenate(found)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    before = np.concatenate([[np.inf], np.minimum.accumulate(rows[:, 1])[:-1]])
    kept = rows[rows[:, 1] < before - 1e-15]
    plans = []
    for n, m, a, b, c in kept[:, 2:].astype(int):
        plans.append((costs.names[a],) * n + (costs.names[b],) * (layers - n - m) + (costs.names[c],) * m)
    return kept[:, :2], plans


def _choose(loss: Array, size: Array, budget: int) -> list[int]:
    """For every row one column: the least sum of losses with at most ``budget`` bytes in all, of these the fewest
    bytes. Raises SpecError where there is none."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array, vstack

    rows, count = loss.shape
    loss, size = np.maximum(loss, 0.0), size.astype(float)
    if size.min(1).sum() > budget:
        raise SpecError(f"No policy takes {budget:,} bytes or fewer; the smallest takes {int(size.min(1).sum()):,}.")
    one = csr_array((np.ones(rows * count), (np.repeat(np.arange(rows), count), np.arange(rows * count))))
    matrix = vstack([one, csr_array(size.reshape(1, -1))])
    limits = LinearConstraint(matrix, [*[1] * rows, 0], [*[1] * rows, budget])
    upper = (~_dominated(loss, size)).astype(float).ravel()
    scale = loss.max() or 1.0
    found = milp(
        (loss / scale).ravel() + 1e-12 * size.ravel() / size.max(),
        constraints=limits,
        bounds=Bounds(0, upper),
        integrality=np.ones(rows * count),
        options={"mip_rel_gap": 1e-9},
    )
    if found.x is None:
        raise SpecError(f"No policy of {budget:,} bytes was found: {found.message}.")
    return [int(at) for at in found.x.reshape(rows, count).argmax(1)]


def _dominated(loss: Array, size: Array) -> Array:
    """(rows, columns): whether another choice of the row is no larger and loses no more, and is better in one of the
    two; of choices alike in both all but the first."""
    a_loss, b_loss, a_size, b_size = loss[:, :, None], loss[:, None, :], size[:, :, None], size[:, None, :]
    no_worse = (b_loss <= a_loss) & (b_size <= a_size)
    better = (b_loss < a_loss) | (b_size < a_size)
    first = np.tri(loss.shape[1], k=-1, dtype=bool)[None]
    return (no_worse & (better | first)).any(-1)


def _best(found: list[SolvedPolicy], budget: int) -> SolvedPolicy:
    if not found:
        raise SpecError(f"No policy takes {budget:,} bytes or fewer; give more bits, or candidates of fewer.")
    return min(found, key=_order)


def _order(solved: SolvedPolicy) -> tuple[float, int]:
    return solved.predicted, solved.nbytes


def _none_fits(costs: Costs, budget: int) -> SpecError:
    least = int(costs.nbytes.min(-1).sum())
    return SpecError(f"No policy takes {budget:,} bytes or fewer; the smallest takes {least:,}.")
