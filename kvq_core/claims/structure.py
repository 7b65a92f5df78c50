"""Measurements of the model's own tensors, no cache quantized: subspaces, spectra, attention that persists; and of key
codebooks trained for a claim."""

from collections.abc import Iterator
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from kvq_core.capture.attention import last_attention
from kvq_core.capture.spectra import deviations, query_directions, singular_values
from kvq_core.claims.lane_errors import later_attention
from kvq_core.claims.measures import Context, Measure, Numbers
from kvq_core.claims.sample import Sample
from kvq_core.claims.texts import Text, token_ids
from kvq_core.errors import MethodError
from kvq_core.frozen import Frozen
from kvq_core.methods.prompt import query_gram, stack_queries
from kvq_core.training.collect import collect
from kvq_core.training.em import EmSettings, train_stage
from kvq_core.training.keys import Residual
from kvq_core.training.texts import SEQUENCE


class QuerySubspace(Measure):
    """How far queries are from the subspace of their strongest ``rank_of_128``/128 x head_dim directions.

    Deviations (SQuat's Definition 1, of normalized queries, means over queries, heads and layers): ``deviation`` of all
    queries from all queries' own subspace; of the ``later`` queries from that of ``all`` queries and from that of the
    ``prompt``'s. ``energy``: share of the squared norm of all queries inside their subspace. Both once more at rank 30
    whatever the head_dim. ``space``: before or after RoPE.
    """

    space: Literal["pre", "post"]
    rank_of_128: int

    @property
    def names(self) -> tuple[str, ...]:
        beside = ("deviation_at_30", "energy_at_30")
        return ("rank", "deviation", "energy", "later_from_all", "later_from_prompt", *beside)

    def on_text(self, context: Context, sample: Sample) -> Numbers:
        queries = sample.queries if self.space == "post" else sample.rope.unrotate(sample.queries, 0)
        heads, dim, n = sample.keys.shape[1], sample.keys.shape[-1], sample.prompt
        rank = max(1, round(self.rank_of_128 / 128 * dim))
        gram = query_gram(queries, heads)
        of_all, of_prompt = query_directions(gram), query_directions(query_gram(queries[..., :n, :], heads))
        (whole,) = deviations(stack_queries(queries, heads), of_all)
        later = deviations(stack_queries(queries[..., n:, :], heads), of_all, of_prompt)
        values = torch.linalg.eigvalsh(gram).clamp_min(0).flip(-1)
        energy = (values.cumsum(-1) / values.sum(-1, keepdim=True)).flatten(0, 1).mean(0)
        return {
            "rank": rank,
            "deviation": whole[..., rank].mean().item(),
            "energy": energy[rank - 1].item(),
            "later_from_all": later[0][..., rank].mean().item(),
            "later_from_prompt": later[1][..., rank].mean().item(),
            "deviation_at_30": whole[..., min(30, dim)].mean().item(),
            "energy_at_30": energy[min(30, dim) - 1].item(),
        }


class KeySpectra(Measure):
    """Spectra of the prompt's centred keys, heads of a layer side by side, before (``pre``) and after RoPE (``post``),
    and of its values: share of the energy in the strongest eighth and half of the directions, and the number of
    directions that hold ``energy`` of it. Means over layers."""

    energy: float

    @property
    def names(self) -> tuple[str, ...]:
        kinds = ("pre", "post", "value")
        return tuple(f"{kind}.{name}" for name in ("top_eighth", "top_half", "rank") for kind in kinds)

    def on_text(self, context: Context, sample: Sample) -> Numbers:
        n = sample.prompt
        tensors = {"pre": sample.keys_before_rope, "post": sample.keys, "value": sample.values}
        found = {}
        for kind, x in tensors.items():
            share = energy_shares(x[..., :n, :])
            channels = share.shape[-1]
            found[f"{kind}.top_eighth"] = share[:, channels // 8 - 1].mean().item()
            found[f"{kind}.top_half"] = share[:, channels // 2 - 1].mean().item()
            found[f"{kind}.rank"] = ((share < self.energy).sum(-1) + 1).double().mean().item()
        return {name: found[name] for name in self.names}


def energy_shares(x: Tensor) -> Tensor:
    """Cumulative share of the squared singular values of each layer's centred (tokens, kv_heads * head_dim) matrix.

    x (layers, kv_heads, tokens, head_dim) -> (layers, kv_heads * head_dim), ending in 1.
    """
    joined = x.transpose(1, 2).flatten(2)
    energy = singular_values(joined - joined.mean(1, keepdim=True)).double().square()
    return energy.cumsum(-1) / energy.sum(-1, keepdim=True).clamp_min(1e-30)


class Persistence(Measure):
    """Whether tokens that matter now will matter later, over the prompt's tokens, means over heads and layers.

    Now: a token's largest attention weight from the prompt's last ``window`` queries. Later: its mean weight from the
    later queries. ``kept``: share of the later top ``share`` of tokens that are in the top ``share`` now; by chance it
    is ``share``. ``surprises``: of the tokens that some later query gives more than ``strong``/T, the share that now
    get less than 1/T, T prompt tokens.
    """

    window: int
    share: float
    strong: float

    @property
    def names(self) -> tuple[str, ...]:
        return ("kept", "surprises")

    def on_text(self, context: Context, sample: Sample) -> Numbers:
        n = sample.prompt
        kept, surprises, count = 0.0, 0, 0
        for layer in range(sample.layers):
            now, weights = now_and_later(sample, layer, self.window)
            kept += overlap(now, weights.mean(-2), self.share).mean().item()
            strong = weights.amax(-2) > self.strong / n
            surprises += int((strong & (now < 1 / n)).sum())
            count += int(strong.sum())
        return {"kept": kept / sample.layers, "surprises": surprises / max(1, count)}


class OneHead(Persistence):
    """As Persistence, of query head ``head`` of layer ``layer`` alone, both counted from 0. ``exceptions``: how many
    tokens now get less than 1/T and later more than ``strong``/T from some query; ``exceptions_share`` of all T."""

    layer: int
    head: int

    @property
    def names(self) -> tuple[str, ...]:
        return ("kept", "exceptions", "exceptions_share")

    def on_text(self, context: Context, sample: Sample) -> Numbers:
        heads, n = sample.queries.shape[1], sample.prompt
        if self.layer >= sample.layers or self.head >= heads:
            raise MethodError(
                f"There is no head {self.head} in layer {self.layer}: {sample.layers} layers, {heads} heads."
            )
        now, weights = (x[self.head] for x in now_and_later(sample, self.layer, self.window))
        count = int(((weights.amax(-2) > self.strong / n) & (now < 1 / n)).sum())
        kept = overlap(now, weights.mean(-2), self.share).item()
        return {"kept": kept, "exceptions": count, "exceptions_share": count / n}


def now_and_later(sample: Sample, layer: int, window: int) -> tuple[Tensor, Tensor]:
    """Largest weight of each prompt token from the prompt's last ``window`` queries (query_heads, prompt), and its
    weights from the later ones (query_heads, later, prompt)."""
    n = sample.prompt
    now = window_attention(sample, layer, window).amax(-2)
    return now, later_attention(sample, layer, sample.keys[layer, :, :n])[..., :n]


def overlap(now: Tensor, later: Tensor, share: float) -> Tensor:
    """Share of the top ``share`` of tokens by ``later`` that are in the top ``share`` by ``now``: (..., T) -> (...)."""
    top = ceil(share * now.shape[-1])
    best = [torch.zeros_like(now).scatter_(-1, x.topk(top, -1).indices, 1) for x in (now, later)]
    return (best[0] * best[1]).sum(-1) / top


def window_attention(sample: Sample, layer: int, window: int) -> Tensor:
    """Attention weights of the prompt's last ``window`` queries: (query_heads, window, prompt)."""
    n = sample.prompt
    queries, keys = sample.queries[layer, :, n - window : n], sample.keys[layer, :, :n]
    how = sample.model.scoring[layer]
    assert how is not None
    return last_attention(queries, keys, how)


class GroupSize(Frozen):
    """``pairs`` of channels that share a code of ``levels`` squared centres a stage."""

    pairs: int
    levels: int


class KeyCodebooks(Measure):
    """CommVQ key codebooks of one layer, trained for the claim on ``tokens`` tokens of another text: the relative
    squared error of the text's keys after each of ``stages`` stages, ``g<pairs>.r<stage>``."""

    layer: int
    groups: tuple[GroupSize, ...]
    stages: int
    train_on: Text
    tokens: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"g{g.pairs}.r{stage}" for g in self.groups for stage in range(1, self.stages + 1))

    def on_text(self, context: Context, sample: Sample) -> Numbers:
        found: Numbers = {}
        for group, stages in self._trained(context).items():
            left = Residual.of(sample.keys_before_rope[self.layer].cpu(), group.pairs)
            for stage, theta in enumerate(stages, 1):
                found[f"g{group.pairs}.r{stage}"] = left.subtract(theta)
        return found

    def _trained(self, context: Context) -> dict[GroupSize, list[Tensor]]:
        if self not in context.shared:
            half = context.model.shape.head_dim // 2
            if unfit := [g.pairs for g in self.groups if half % g.pairs]:
                raise MethodError(f"Groups of {unfit[0]} pairs do not tile a head of {2 * half} channels.")
            ids, _ = token_ids(context.model, self.train_on, self.tokens)
            pieces = [ids[start : start + SEQUENCE] for start in range(0, len(ids), SEQUENCE)]
            keys = collect(context.model, pieces, lambda *_: None).keys[self.layer].float()
            context.shared[self] = {group: list(self._stages(keys, group)) for group in self.groups}
        return context.shared[self]

    def _stages(self, keys: Tensor, group: GroupSize) -> Iterator[Tensor]:
        left = Residual.of(keys, group.pairs)
        for stage in range(self.stages):
            theta = train_stage(left.z, left.weight, group.levels, EmSettings(), stage)
            left.subtract(theta)
            yield theta
