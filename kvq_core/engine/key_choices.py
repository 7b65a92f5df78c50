"""Which keys the rows of a run read: those of most lanes all, the others as their caches choose."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvq_core.engine.fit import FitSource, take, within
from kvq_core.engine.row_part import LayerStep, RowPart
from kvq_core.errors import MethodError
from kvq_core.methods import KeySelection, Prompt
from kvq_core.methods.base import Select
from kvq_core.methods.eviction import Evicting

Reads = dict[int, Callable[[], Tensor]]  # by row: the keys it reads in a step, bool (kv_heads, tokens)
Choices = dict[int, tuple[Select, int]]  # by model layer: what chooses, and the layer's place in it


def fit_selection(
    selection: KeySelection, layers: tuple[int, ...], source: FitSource, tokens: int
) -> tuple[Choices, tuple[str, ...]]:
    """A selection fitted on the prompt's true keys and queries of some layers, device by device, and its remarks;
    ``tokens``: of the whole prompt, where the source has its first chunk alone."""
    found, notes = Choices(), dict[str, None]()
    for group in source.groups:
        if inside := within(layers, group):
            keys, values = take(group.keys, inside).float(), take(group.values, inside).float()
            queries = take(group.queries, inside).float() if selection.needs_queries else None
            own = tuple(group.layers[i] for i in inside)
            scaling = tuple(group.scaling[i] for i in inside if group.scaling)
            prompt = Prompt(keys, values, queries, model=source.model, layers=own, rotated=keys, scaling=scaling)
            fitted = selection.fit(prompt, tokens)
            assert fitted.select is not None
            found |= {layer: (fitted.select, at) for at, layer in enumerate(own)}
            notes |= dict.fromkeys(fitted.notes)
    return found, tuple(notes)


def fork(choices: Choices) -> Choices:
    """The same for a cache of its own: what follows its steps is copied."""
    own = {id(select): select.fork() for select, _ in choices.values() if isinstance(select, Evicting)}
    return {layer: (own.get(id(select), select), at) for layer, (select, at) in choices.items()}


@dataclass
class KeyChoices(RowPart):
    """The choices of every row, in the order of the rows; of those that read all keys there are none.

    ``failed``: rows whose choice raised or was none, with the error. They read all keys, so that the other rows go on;
    whoever leads the step empties it.
    """

    rows: list[Choices]
    kv_heads: dict[int, int]  # by model layer
    failed: dict[int, Exception] = field(default_factory=dict)

    def fork(self, own: Choices) -> None:
        """One row more."""
        self.rows.append(own)

    def keep(self, rows: list[int]) -> None:
        """Drop all others, in the order given."""
        self.rows = [self.rows[row] for row in rows]

    def before(self, step: LayerStep) -> None:
        reads = self.reads(step.held_by, step.queries, step.tokens + step.fresh)
        step.hidden = {step.places.at[row]: read for row, read in reads.items()}

    def after(self, step: LayerStep) -> None:
        for row in self.following(step.layer):
            assert step.weights is not None
            self.follow(row, step.layer, step.places.of_row(step.weights, row).unflatten(1, (-1, step.fresh)))

    def reads(self, layer: int, queries: Tensor, tokens: int) -> Reads:
        """The keys that rows read in a step, bool (kv_heads, tokens), of those that choose; each is asked once.
        queries (rows, query_heads, fresh, head_dim) after RoPE; tokens in the cache with the step's own."""
        asked = ((row, *own[layer]) for row, own in enumerate(self.rows) if layer in own)
        return {
            row: cache(partial(self._read, row, select, at, queries[row].float(), tokens, self.kv_heads[layer]))
            for row, select, at in asked
        }

    def _read(self, row: int, select: Select, at: int, queries: Tensor, tokens: int, kv_heads: int) -> Tensor:
        """What a row reads; all keys, (1, tokens), where its choice fails."""
        try:
            if row not in self.failed:
                return _sound(select(at, queries, tokens), kv_heads, tokens, queries.shape[1])
        except Exception as error:  # whatever a method does wrong is its lane's failure, not the run's
            self.failed[row] = error
        return torch.ones(1, tokens, dtype=torch.bool, device=queries.device)

    def following(self, layer: int) -> list[int]:
        """The rows whose choice depends on the attention of their steps."""
        return [row for row, own in enumerate(self.rows) if layer in own and isinstance(own[layer][0], Evicting)]

    def follow(self, row: int, layer: int, attention: Tensor) -> None:
        """Show a row's choice the attention of its step, (kv_heads, groups, fresh, tokens)."""
        select, at = self.rows[row].get(layer, (None, 0))
        if not isinstance(select, Evicting) or row in self.failed:
            return
        try:
            select.follow(at, attention)
        except Exception as error:  # as in _read
            self.failed[row] = error

    def read_by(self, row: int, layer: int, queries: Tensor, seen: Tensor, tokens: int) -> Tensor | None:
        """The keys a row's cache would choose for queries (query_heads, n, head_dim) after RoPE, of which each sees
        the first ``seen`` (n,) of all ``tokens``: bool (kv_heads, n, tokens); None where it reads all of them."""
        select, at = self.rows[row].get(layer, (None, 0))
        if select is None:
            return None
        heads = self.kv_heads[layer]
        asked = ((self._read(row, select, at, queries[:, i : i + 1], n, heads), n) for i, n in enumerate(seen.tolist()))
        read = [pad(read, (0, tokens - n)) for read, n in asked]
        return None if row in self.failed else torch.stack(read, 1)


def _sound(read: Tensor, kv_heads: int, tokens: int, fresh: int) -> Tensor:
    """What a step of ``fresh`` queries reads. Raises MethodError for another shape or type, and where a query that
    sees its own token and those before it would read nothing."""
    if not isinstance(read, Tensor):
        raise MethodError(f"select gave {type(read).__name__}, not a tensor")
    if read.shape != (kv_heads, tokens) or read.dtype != torch.bool:
        kind = str(read.dtype).removeprefix("torch.")
        raise MethodError(f"select gave {kind} {tuple(read.shape)}, not bool {(kv_heads, tokens)} (kv_heads, tokens)")
    if not read[:, : tokens - fresh + 1].any(-1).all():
        raise MethodError("select left a KV head no key to read")
    return read
