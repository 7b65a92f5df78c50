"""Function-preserving stress: keys made hard to quantize while full-precision attention stays what it was.

A pair of channels that RoPE rotates together is scaled by s in the keys and by 1/s in the queries: q.k is unchanged.
One constant vector is added to all keys of a head after RoPE: every score of a query moves by the same q.b, which
softmax ignores. The vector lies on the pairs that turn slowest, so that it stays nearly constant before RoPE too; it is
an analogue of a bias in the key projection, not the same thing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvq_core.engine.divergence import kl_divergence
from kvq_core.engine.prefill import LayerGroup, SharedPrefill
from kvq_core.errors import SpecError
from kvq_core.models import LoadedModel
from kvq_core.models.lockstep import Attend
from kvq_core.models.rope import Rope
from kvq_core.models.scoring import Scoring, causal_attention
from kvq_core.spec import Stress

BIASED_PAIRS = 4  # of the slowest ones
CHECKED = 32  # last prompt positions on which the reference is compared with and without stress
TOLERANCE = {torch.float32: 1e-4}  # nats, largest KL(unstressed || stressed) over them
HALF_TOLERANCE = 1e-2


@dataclass(frozen=True)
class AppliedStress:
    """Stress as it acts on one model and prompt: factors (layers, kv_heads, head_dim) of the keys, 1/factors of the
    queries, and offsets of the keys added after that."""

    factors: Tensor
    offsets: Tensor
    layers: list[int]
    kv_heads: list[int]
    pairs: list[int]

    @classmethod
    def of(cls, stress: Stress, groups: list[LayerGroup], rope: Rope) -> "AppliedStress":
        """Raises SpecError where the model's RoPE does not tie channel i to i + head_dim / 2."""
        _check_pairs(rope)
        groups = [group for group in groups if group.captured]  # heads of one shape, of layers that read all keys
        if not groups:
            raise SpecError("stress is for layers that attend to all tokens, and this model has none; leave it out.")
        heads, _, dim = groups[0].keys.shape[1:]
        there = sorted(layer for group in groups for layer in group.captured)
        layers = there if isinstance(stress.layers, str) else sorted(set(stress.layers) & set(there))
        count = max(there) + 1
        kv_heads = list(range(heads)) if isinstance(stress.kv_heads, str) else sorted(set(stress.kv_heads))
        factors, offsets = torch.ones(count, heads, dim), torch.zeros(count, heads, dim)
        slowest = _slowest(rope)
        for group in groups:
            for i, layer in enumerate(group.layers):
                for head in kv_heads if layer in layers else []:
                    keys = group.keys[i, head]
                    energy = keys.square().mean(0).view(2, -1).sum(0)  # of each pair
                    scaled = (
                        energy.topk(min(stress.key_outlier_pairs, len(energy))).indices.cpu()
                        if isinstance(stress.key_outlier_pairs, int)
                        else torch.tensor(stress.key_outlier_pairs, dtype=torch.long)
                    )
                    factors[layer, head].view(2, -1)[:, scaled] = stress.key_outlier_scale
                    size = stress.key_bias * keys.square().mean().sqrt().item()
                    offsets[layer, head].view(2, -1)[:, slowest] = size
        told = [] if isinstance(stress.key_outlier_pairs, int) else sorted(set(stress.key_outlier_pairs))
        return cls(factors, offsets, layers, kv_heads, told)

    def keys(self, layer: int, keys: Tensor) -> Tensor:
        """Keys after RoPE (..., kv_heads, tokens, head_dim) of a layer, stressed, float32."""
        if layer not in self.layers:
            return keys.float()
        factor, offset = (t[layer, :, None].to(keys.device) for t in (self.factors, self.offsets))
        return keys.float() * factor + offset

    def queries(self, layer: int, queries: Tensor) -> Tensor:
        """Queries after RoPE (..., query_heads, tokens, head_dim) of a layer, float32."""
        if layer not in self.layers:
            return queries.float()
        groups = queries.shape[-3] // self.factors.shape[1]
        factor = self.factors[layer].repeat_interleave(groups, 0)[:, None].to(queries.device)
        return queries.float() / factor

    def wrap(self, attend: Attend) -> Attend:
        """``attend`` as it is, seeing stressed queries and keys."""

        def stressed(layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
            held = how.holder(layer)  # whose keys queries meet
            return attend(layer, self.queries(held, queries), self.keys(held, keys), values, how)

        return stressed

    def apply(self, groups: list[LayerGroup]) -> None:
        """Stress the prompt's tensors in place."""
        for group in groups:
            for i, layer in enumerate(group.layers):
                group.keys[i] = self.keys(layer, group.keys[i])
                group.queries[i] = self.queries(layer, group.queries[i])
            if group.key_bias is not None:  # before RoPE, which turns the two channels of a pair, scaled alike
                group.key_bias = group.key_bias * self.factors[group.layers].to(group.device)


@dataclass(frozen=True)
class ReferenceShift:
    """How little the reference moved: over ``positions`` of the prompt, largest KL(unstressed || stressed) in nats,
    largest change of a logit, and whether the most probable token is everywhere the same."""

    positions: int
    kld_max: float
    logit_max: float
    same_tokens: bool
    tolerance: float


def apply_stress(model: LoadedModel, prefill: SharedPrefill, stress: Stress) -> tuple[AppliedStress, ReferenceShift]:
    """Stress a finished prefill in place, and prove that full-precision attention computes the same.

    Raises SpecError where the reference itself moves by more than the tolerance.
    """
    applied = AppliedStress.of(stress, prefill.groups, model.rope(len(prefill.ids)).tables)
    before = _logits(model, prefill, None)
    applied.apply(prefill.groups)
    after = _logits(model, prefill, applied)
    p, q = torch.log_softmax(before.double(), -1), torch.log_softmax(after.double(), -1)
    kld = kl_divergence(p, q).max().item()
    found = ReferenceShift(
        positions=len(p),
        kld_max=kld,
        logit_max=(before - after).abs().max().item(),
        same_tokens=torch.equal(before.argmax(-1), after.argmax(-1)),
        tolerance=TOLERANCE.get(model.dtype, HALF_TOLERANCE),
    )
    if not kld <= found.tolerance:  # NaN is refused as well
        raise SpecError(
            f"stress changes the reference itself (KL divergence {kld:.2g} nats, at most {found.tolerance:g} is "
            "allowed), so damage could not be told from it; use a smaller key_bias or key_outlier_scale."
        )
    return applied, found


def _logits(model: LoadedModel, prefill: SharedPrefill, applied: AppliedStress | None) -> Tensor:
    """Logits of the last prompt tokens (positions, vocabulary), attending to the prompt's tensors as they stand."""
    start = 0 if model.shape.stateful else max(0, len(prefill.ids) - CHECKED)

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        held = how.holder(layer)
        group, i = prefill.place[held]
        asked = queries.float() if applied is None else applied.queries(held, queries)
        return causal_attention(asked, group.keys[i : i + 1], group.values[i : i + 1], how)

    return model.head(model.hidden(torch.tensor([prefill.ids[start:]]), start, attend)[:, -CHECKED:])[0]


def _slowest(rope: Rope) -> Tensor:
    """The BIASED_PAIRS pairs that turn least from one position to the next."""
    half = rope.norm.shape[-1] // 2
    if rope.cos.shape[0] < 2:
        return torch.arange(half)[-BIASED_PAIRS:]
    turn = torch.atan2(rope.sin[1, :half], rope.cos[1, :half]).abs()
    return turn.topk(min(BIASED_PAIRS, half), largest=False).indices.cpu()


def _check_pairs(rope: Rope) -> None:
    dim = rope.norm.shape[-1]
    ramp = torch.arange(1.0, dim // 2 + 1).repeat(2)
    there = torch.randn(1, 1, min(2, rope.cos.shape[0]), dim, generator=torch.Generator().manual_seed(0))
    turned: Callable[[Tensor], Tensor] = lambda x: rope.rotate(x, 0)  # noqa: E731
    if rope.cos.shape[-1] != dim or not torch.allclose(turned(there * ramp), turned(there) * ramp, atol=1e-3):
        raise SpecError(
            "stress scales the channel pairs (i, i + head_dim/2) that RoPE turns together, and this model's RoPE ties "
            "other channels; leave stress out or choose a model with the usual RoPE, such as Llama, Qwen or Mistral."
        )
