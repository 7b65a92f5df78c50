"""Forward passes of a model with an edit and a cache format, and what a reference pass leaves to try edits on.

The edit is applied to what attention is handed, where it is what the changed weights would give: keys lose the turned
part of their bias and are divided by s, queries multiplied with s. So a candidate costs no copy of the weights.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvq_core.engine.divergence import kl_divergence
from kvq_core.mend.edit import Edit
from kvq_core.mend.formats import CacheFormat
from kvq_core.models import LoadedModel
from kvq_core.models.rope import Rope
from kvq_core.models.scoring import Scoring, causal_attention

Watch = Callable[[int, Tensor, Tensor, Tensor], None]


@dataclass
class Scored:
    """KLD (positions,) in nats against the reference, and whether the most probable token is the same."""

    kld: Tensor
    same: Tensor

    @property
    def mean(self) -> float:
        return self.kld.double().mean().item()

    @property
    def flips(self) -> int:
        return int((~self.same).sum())


@dataclass
class Editing:
    """An edit of a model's keys and queries, at positions 0 .. tokens-1."""

    model: LoadedModel
    tokens: int
    edit: Edit | None = None
    form: CacheFormat | None = None
    rope: Rope | None = None  # of so many tokens, where it is at hand

    def __post_init__(self) -> None:
        self._rounding = None if self.form is None else self.form.rounding(self.model.ref)

    def keys(self, layer: int, keys: Tensor, start: int) -> Tensor:
        """Keys (kv_heads, tokens, head_dim) after RoPE from a position on, as the edited weights give them."""
        if self.edit is None or layer not in self.model.shape.alike:
            return keys
        lost = None if self.model.key_bias is None else self.model.key_bias[layer] * (1 - self.edit.keep[layer])
        if lost is not None and lost.any():
            keys = keys - self.turned(layer, lost.to(keys.device), start, keys.shape[-2])
        return keys / self.edit.scale[layer][:, None].to(keys.device)

    def turned(self, layer: int, constant: Tensor, start: int, tokens: int) -> Tensor:
        """A constant (kv_heads, head_dim) of keys before RoPE, at positions after it: (kv_heads, tokens, head_dim)."""
        alike = constant[None, :, None].expand(-1, -1, tokens, -1).contiguous()
        self.rope = self.rope or self.model.rope(self.tokens)
        return self.rope.on([layer]).rotate(alike, start)[0]

    def queries(self, layer: int, queries: Tensor) -> Tensor:
        """Queries (query_heads, n, head_dim), edited and rounded as the format's kernel rounds them."""
        if self.edit is not None and layer in self.model.shape.alike:
            scale = self.edit.scale[layer].to(queries.device)
            queries = queries * scale.repeat_interleave(len(queries) // len(scale), 0)[:, None]
        return queries if self._rounding is None else self._rounding(queries)

    def stored(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Both as they are read."""
        return (keys, values) if self.form is None else self.form.stored(self.model.ref, layer, keys, values)


def read_through(
    model: LoadedModel, ids: list[int], scored: int, edit: Edit | None, form: CacheFormat | None
) -> Tensor:
    """Log-probabilities (scored, vocabulary) of what follows each of the last tokens but the very last, the prompt read
    as an engine reads it that stores a token before it is read; no format: in full precision."""
    how = Editing(model, len(ids), edit, form)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        keys, values = how.stored(layer, how.keys(layer, k[0].float(), 0), v[0].float())
        asked = how.queries(layer, q[0].float())
        return causal_attention(asked[None], keys[None], values[None], scoring)

    return _told(model, model.hidden(torch.tensor([ids]), 0, attend)[:, -scored - 1 : -1])


def score(reference: Tensor, found: Tensor) -> Scored:
    """Both (positions, vocabulary) log-probabilities."""
    return Scored(kl_divergence(reference, found), reference.argmax(-1) == found.argmax(-1))


@dataclass
class ReferencePass:
    """What a pass in full precision left of a text: keys and values (kv_heads, tokens, head_dim) of every layer, the
    queries (query_heads, scored, head_dim) of its last tokens, mean squares of all queries (query_heads, head_dim), and
    log-probabilities (scored, vocabulary)."""

    ids: list[int]
    scored: int
    keys: dict[int, Tensor]
    values: dict[int, Tensor]
    queries: dict[int, Tensor]
    power: dict[int, Tensor]
    told: Tensor

    @classmethod
    def of(cls, model: LoadedModel, ids: list[int], ends: list[int], scored: int) -> "list[ReferencePass]":
        """Of the text's beginnings that end at ``ends``, from one pass over the longest."""
        keys, values, power = dict[int, Tensor](), dict[int, Tensor](), dict[int, Tensor]()
        asked: dict[int, list[Tensor]] = {}

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
            keys[layer], values[layer] = k[0].float().cpu(), v[0].float().cpu()
            power[layer] = q[0].float().square().mean(-2).cpu()
            asked[layer] = [q[0, :, end - scored : end].float().cpu().clone() for end in ends]
            return causal_attention(q, k, v, scoring)

        hidden = model.hidden(torch.tensor([ids[: max(ends)]]), 0, attend)
        found = []
        for at, end in enumerate(ends):
            told = _told(model, hidden[:, end - scored : end])
            cut = [{layer: x[:, :end] for layer, x in held.items()} for held in (keys, values)]
            queries = {layer: each[at] for layer, each in asked.items()}
            found.append(cls(ids[:end], scored, cut[0], cut[1], queries, power, told))
        return found

    def replay(self, model: LoadedModel, edit: Edit, form: CacheFormat | None) -> Scored:
        """The last tokens anew, on the reference's keys and values of those before, edited and stored: what errors of
        the earlier tokens' own passes add is left out, at a fraction of the time."""
        start = len(self.ids) - self.scored
        how = Editing(model, len(self.ids), edit, form)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
            keys = torch.cat([self.keys[layer][:, :start].to(k.device), k[0].float()], 1)
            values = torch.cat([self.values[layer][:, :start].to(v.device), v[0].float()], 1)
            keys, values = how.stored(layer, how.keys(layer, keys, 0), values)
            return causal_attention(how.queries(layer, q[0].float())[None], keys[None], values[None], scoring)

        return score(self.told, _told(model, model.hidden(torch.tensor([self.ids[start:]]), start, attend)))


def _told(model: LoadedModel, hidden: Tensor) -> Tensor:
    return torch.log_softmax(model.head(hidden)[0], -1).cpu()
