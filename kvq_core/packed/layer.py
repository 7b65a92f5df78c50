"""One attention layer whose cache exists in packed form only."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import torch
from kvq_kernels import Path, Store
from torch import Tensor

from kvq_core.codecs.queries import QueryRounding
from kvq_core.engine.rotation import asked_turned, rounded_turned
from kvq_core.errors import MethodError
from kvq_core.methods import KeySelection, Method, ModelRef, Prompt, Window
from kvq_core.methods.base import Select
from kvq_core.methods.eviction import Evicting
from kvq_core.models.scoring import Scoring, causal_attention
from kvq_core.packed import transforms
from kvq_core.packed.attention import Fresh, StepQueries, attention
from kvq_core.packed.ragged import FEW, RaggedLayer, in_steps
from kvq_core.packed.rope_tables import RopeTables
from kvq_core.packed.tensors import AS_IT_IS, Side, StoreSide, StreamSide, side_of


@dataclass(frozen=True)
class PackingPlan:
    """How one method stores keys, values or both of some layers of one cache. ``turns``: the method's keys are those
    before RoPE; ``ref``: the model, for methods with learned data; ``room``: packed tokens to allocate ahead;
    ``scaling`` of the scores of each layer of the model, 1/sqrt(head_dim) where it is not given."""

    method: Method
    windows: tuple[Window, Window]
    path: Path = "auto"
    turns: RopeTables | None = None
    ref: ModelRef | None = None
    room: int = 0
    scaling: tuple[float, ...] = ()
    of: int = 1  # layers of the cache that it is for
    asked: transforms.TransformOptions = transforms.TransformOptions()
    waiting: "list[WaitingPrompt]" = field(default_factory=list)

    @property
    def stored(self) -> RopeTables | None:
        """RoPE of the keys as they are stored: keys left alone are kept after it, whatever the method's space."""
        return None if self.windows[0].step is None else self.turns


@dataclass(frozen=True)
class WaitingPrompt:
    """A layer's prompt, unquantized, until the plan's last layer has come: its method decides over all of them."""

    layer: "PackedLayer"
    plan: PackingPlan
    queries: Tensor | None
    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class UnstoredTokens:
    """Tokens that a layer has attended to and not stored: ``keys`` and ``values`` as they will be; its ``queries`` and
    ``weights`` over all tokens."""

    keys: Tensor
    fresh: Fresh
    queries: Tensor
    weights: Tensor


@dataclass
class PackedLayer:
    """The first tokens it sees are the prompt: they attend to themselves in full precision, and the method is fitted on
    them. Later tokens read the packed cache: a few one by one through the fused attention where keys and values are
    groups of codes, else through scores of the packed keys and weighted sums of the packed values. Where the method's
    kernels round queries, those of a single new token are, and those of several before they meet earlier keys.
    ``values``: the plan of the values, where that is another one than of the keys. ``selection``: what chooses the keys
    that are read, beside what stores them; of a layer whose keys are chosen nothing is fused."""

    plan: PackingPlan
    index: int = 0
    values: PackingPlan | None = None
    selection: KeySelection | None = None
    keys_side: Side | None = None
    values_side: Side | None = None
    select: Select | None = None
    behind: transforms.Transform = AS_IT_IS  # of the keys
    readers: int = 0  # later layers that read what it holds, in the pass in which it takes tokens in
    entering: UnstoredTokens | None = None

    @property
    def sides(self) -> tuple[Side, ...]:
        """Keys and values; nothing before the prompt is stored."""
        return () if self.keys_side is None or self.values_side is None else (self.keys_side, self.values_side)

    @property
    def tokens(self) -> int:
        return self.sides[0].tokens if self.sides else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the tokens held, from the tensors."""
        return sum(side.nbytes for side in self.sides)

    @property
    def allocated(self) -> int:
        return sum(side.allocated for side in self.sides)

    @property
    def host_bytes(self) -> int:
        """Bytes of copies in host memory that re-encoding reads."""
        return sum(side.host_bytes for side in self.sides if isinstance(side, StreamSide))

    def apart(self, padding: Sequence[int]) -> RaggedLayer:
        """Rows of their own for prompts with so many tokens of padding before them; nothing may have entered yet."""
        for plan in (self.plan, self.values):
            if plan is not None and plan.method.spans_layers:
                raise MethodError(f"{plan.method.title} decides over all layers of one prompt; use a batch of 1.")
        return RaggedLayer.of(lambda: replace(self), padding)

    @property
    def stores(self) -> list[Store]:
        """The stores of keys and values, where both are groups of codes kept after RoPE and all are read: what is
        fused."""
        grouped = [side.store for side in self.sides if isinstance(side, StoreSide)]
        alike = len(grouped) == 2 and grouped[0].layout.sinks == grouped[1].layout.sinks
        return grouped if alike and self.plan.stored is None and self.select is None else []

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        if not self.sides:
            out = causal_attention(queries, keys, values, how)
            self.fill(queries, keys, values)
            return out
        several = keys.shape[-2] > 1
        if self.readers or not self.stores or not how.plain or (several and self._rounding is not None):
            return self._attend_apart(queries, keys, values, how)
        if keys.shape[-2] <= FEW:
            return in_steps(self._met(queries), keys, values, self.stores, how, self.plan.path).to(queries.dtype)
        past_keys, past_values = (
            torch.cat([store.dense(), x.half().float()], -2)
            for store, x in zip(self.stores, (keys, values), strict=True)
        )  # several tokens at once read the dequantized cache, which exists while they do
        out = causal_attention(queries.float(), past_keys, past_values, how).to(queries.dtype)
        for store, x in zip(self.stores, (keys, values), strict=True):
            store.extend(x)
        return out

    @property
    def whole(self) -> list[Store]:
        """The stores of a layer whose every step is the same launches; none where it is not."""
        return self.stores if self._rounding is None and not self.readers else []

    def mark(self) -> list[Hashable]:
        """What ``rewind`` needs to forget what enters from now on."""
        if self.select is not None or any(side.observes for side in self.sides):
            raise MethodError(
                f"{self.plan.method.title} changes what it holds by what is asked, and cannot be cut back: leave out "
                "assistant_model and prompt_lookup_num_tokens."
            )
        return [side.mark() for side in self.sides]

    def rewind(self, marks: Sequence[Hashable]) -> None:
        """Be as when the marks were made."""
        if not marks:  # the prompt had not come
            self.keys_side = self.values_side = self.select = None
            self.behind = AS_IT_IS
        for side, mark in zip(self.sides, marks, strict=True):
            side.rewind(mark)

    def _attend_apart(self, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        start, turns = self.tokens, self.plan.stored
        stored = keys.to(self.sides[0].enters) if turns is None else turns.unrotate(keys.float(), start).half()
        read = stored.float() if turns is None else turns.rotate(stored.float(), start)
        fresh = Fresh(read, values.to(self.sides[1].enters))
        out, weights = self._over(queries, fresh, how)
        self.entering = UnstoredTokens(stored, fresh, queries.float(), weights)
        if not self.readers:
            self.settle()
        return out.to(queries.dtype)

    def _over(self, queries: Tensor, fresh: Fresh, how: Scoring) -> tuple[Tensor, Tensor]:
        """Attention over what is held and the tokens that enter: the output and the weights."""
        hidden, count = None, fresh.keys.shape[-2]
        if self.select is not None:
            total = self.tokens + count
            hidden = ~torch.stack([self.select(row, q.float(), total) for row, q in enumerate(queries)])
        met = self._met(queries)
        asked = StepQueries(queries if count > 1 else met, met)
        return attention(asked, self.sides[0], self.sides[1], fresh, how, hidden)

    def read(self, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        """Attention of a layer that holds nothing, over what this one holds and takes in in this pass: in that of the
        prompt over keys and values as they are."""
        if self.entering is None:
            return causal_attention(queries, keys, values, how)
        return self._over(queries, self.entering.fresh, how)[0].to(queries.dtype)

    def settle(self) -> None:
        """Store the tokens that have been attended to."""
        if (new := self.entering) is None:
            return
        self.entering = None
        for side, x in zip(self.sides, (new.keys, new.fresh.values), strict=True):
            side.extend(x)
            side.observe(new.queries, new.weights)
        if isinstance(self.select, Evicting):
            for row, each in enumerate(new.weights):
                self.select.follow(row, each.unflatten(0, (new.keys.shape[1], -1)))

    @property
    def _rounding(self) -> QueryRounding | None:
        """How queries are rounded before they meet the keys; None where they are not, or no key is quantized."""
        return None if self.plan.windows[0].step is None else self.plan.method.query_rounding(self.plan.ref)

    def _met(self, queries: Tensor) -> Tensor:
        """queries (rows, query_heads, n, head_dim) as the cache's keys meet them; float32 where they are rounded."""
        rounding = self._rounding
        if rounding is None:
            return queries
        own = (rounded_turned(rounding, self.behind.of_row(row)) for row in range(len(queries)))
        return torch.stack([rounds(q.float()) for rounds, q in zip(own, queries, strict=True)])

    def fill(self, queries: Tensor | None, keys: Tensor, values: Tensor) -> None:
        """Fit the methods on the prompt and enter it; every row of the batch is fitted by itself.

        Raises MethodError where a method has no packed form.
        """
        for plan in (self.plan, self.values):
            if plan is not None:
                self._enter(WaitingPrompt(self, plan, queries if plan.method.needs_queries else None, keys, values))
        if self.selection is not None:
            asked = queries if self.selection.needs_queries else None
            chosen = _prompt([WaitingPrompt(self, replace(self.plan, turns=None), asked, keys, values)])
            self.select = self.selection.fit(chosen, keys.shape[-2]).select

    def _enter(self, entering: "WaitingPrompt") -> None:
        plan = entering.plan
        if not plan.method.spans_layers:
            return self._fill(plan.method, entering)
        if len(entering.keys) > 1:
            raise MethodError(
                f"{plan.method.title} decides over all layers of one prompt; use a batch of 1, or give what is "
                "decided (a schedule, both tolerances) as knobs."
            )
        plan.waiting.append(entering)
        if len(plan.waiting) == plan.of:
            _settle(plan.waiting)
            plan.waiting.clear()

    def _fill(self, method: Method, entering: "WaitingPrompt") -> None:
        plan, prompt = entering.plan, _prompt([entering])
        turned, behind = plan.asked.before(prompt, plan.turns is not None)
        fitted = method.fit(turned)  # a row of the batch stands where a layer does
        if plan is self.plan:
            stored = prompt.keys if plan.stored is not None else entering.keys.float()
            self.keys_side = side_of(fitted.key, plan.windows[0], stored, plan.stored, plan.path, plan.room, behind)
            self.behind = behind
            if plan.windows[0].step is not None and fitted.select is not None:
                self.select = asked_turned(fitted.select, behind.rotation)
        if plan is (self.values or self.plan):
            of_values = transforms.Transform(rotation=behind.rotation)
            self.values_side = side_of(
                fitted.value, plan.windows[1], prompt.values, None, plan.path, plan.room, of_values, "values"
            )


def _prompt(layers: Sequence[WaitingPrompt]) -> Prompt:
    """What a method is fitted on: the rows of one layer, or several layers of one row, of one plan."""
    plan = layers[0].plan
    keys = torch.cat([w.keys.float() for w in layers])
    values = torch.cat([w.values.float() for w in layers])
    stored = keys
    if plan.turns is not None:
        turned = ((w.plan.turns, w.keys.float()) for w in layers)  # layers may rotate in different ways
        stored = torch.cat([x if turns is None else turns.unrotate(x, 0) for turns, x in turned])
    asked = [w.queries.float() for w in layers if w.queries is not None]
    index = tuple(w.layer.index for w in layers for _ in w.keys)
    queries = torch.cat(asked) if asked else None
    scaling = tuple(plan.scaling[i] for i in index if plan.scaling)
    return Prompt(stored, values, queries, model=plan.ref, layers=index, rotated=keys, scaling=scaling)


def _settle(waiting: Sequence[WaitingPrompt]) -> None:
    """Decide over all layers of a plan, whatever their devices, as a comparison does, and fill each of them."""
    prompts = [
        _prompt([w for w in waiting if w.keys.device == device])
        for device in dict.fromkeys(w.keys.device for w in waiting)
    ]
    method = waiting[0].plan.method.across_layers(Prompt.join(prompts))
    for w in waiting:
        w.layer._fill(method, w)
