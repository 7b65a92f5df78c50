"""Key codebooks: residual stages of every layer, greedily, each on what the stages before it left."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from kvq_kernels.rope_codebook import chosen, code_vectors, nearest_codes, split_pairs
from torch import Tensor

from kvq_core.codebooks.checkpoints import Checkpoints
from kvq_core.codebooks.collect import Progress, Samples
from kvq_core.codebooks.em import EmSettings, train_stage

EPS = 1e-6  # a zero key has no direction; the paper's code divides by its zero norm


@dataclass(frozen=True)
class KeyPlan:
    """What to train: ``levels`` (L), ``pairs`` a group, number of ``stages`` (R), the annealing and a seed."""

    levels: int
    pairs: int
    stages: int
    em: EmSettings
    seed: int


@dataclass
class Residual:
    """What is left of a layer's keys: z (groups, n, 2P), each token first divided by its norm over all heads.

    ``weight`` (1, n) is the squared norm, which makes errors those of the keys themselves; ``total`` the keys' energy.
    """

    z: Tensor
    weight: Tensor
    total: float

    @classmethod
    def of(cls, keys: Tensor, pairs: int) -> "Residual":
        """keys (kv_heads, n, head_dim) float32 before RoPE."""
        square = keys.square().sum((0, 2))
        unit = keys / square.sqrt().clamp_min(EPS)[:, None]
        return cls(split_pairs(unit, pairs).flatten(0, 1), square[None], square.sum().item())

    def subtract(self, theta: Tensor) -> float:
        """Take a stage's nearest centres away; the relative squared error that remains."""
        vectors = code_vectors(theta.float())
        codes, squared = nearest_codes(self.z, vectors)
        self.z = self.z - chosen(codes, vectors)
        return (squared * self.weight).sum().item() / max(self.total, EPS)


def train_keys(
    train: Samples, held_out: Samples, plan: KeyPlan, checkpoints: Checkpoints, progress: Progress
) -> dict[str, Tensor]:
    """Train the stages of every layer. Each finished stage is a checkpoint, and is not trained again.

    Returns theta (layers, kv_heads, groups, stages, levels, P, 2) float16 and, per layer and stage, the relative
    squared errors train_error and held_out_error (layers, stages). A stage depends only on those before it, so a
    codebook of more stages begins with the one of fewer.
    """
    layers, heads = train.keys.shape[:2]
    steps, done = [], 0
    for layer in range(layers):
        for theta, errors in _layer(train.keys[layer].float(), held_out.keys[layer].float(), layer, plan, checkpoints):
            steps.append((theta, errors))
            done += 1
            progress("Training keys", done, layers * plan.stages)
    theta = torch.stack([t for t, _ in steps]).unflatten(0, (layers, plan.stages)).unflatten(2, (heads, -1))
    errors = torch.stack([e for _, e in steps]).unflatten(0, (layers, plan.stages))
    return {
        "theta": theta.movedim(1, 3).contiguous(),
        "train_error": errors[..., 0].contiguous(),
        "held_out_error": errors[..., 1].contiguous(),
    }


def _layer(
    keys: Tensor, held_out: Tensor, layer: int, plan: KeyPlan, checkpoints: Checkpoints
) -> Iterator[tuple[Tensor, Tensor]]:
    """Stages of one layer: theta (groups, levels, P, 2) float16 and [train, held-out] error after it."""
    train, check = (Residual.of(x, plan.pairs) for x in (keys, held_out))
    for stage in range(plan.stages):
        name = f"layer{layer:03d}-stage{stage:02d}"
        saved = checkpoints.load(name)
        if saved is not None:
            theta = saved["theta"]
        else:
            seed = (plan.seed * 1000 + layer) * 1000 + stage
            theta = train_stage(train.z, train.weight, plan.levels, plan.em, seed)
            checkpoints.save(name, {"theta": theta})
        yield theta, torch.tensor([train.subtract(theta), check.subtract(theta)])
