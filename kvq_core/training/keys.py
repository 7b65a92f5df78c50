"""Key codebooks: residual stages of every layer, greedily, each on what the stages before it left."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from kvq_kernels.rope_codebook import code_vectors, nearest_codes, split_pairs, stage_centres
from torch import Tensor

from kvq_core.machine.progress import Progress, Report
from kvq_core.training.checkpoints import Checkpoints
from kvq_core.training.collect import Samples
from kvq_core.training.em import EmSettings, train_stage

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
        self.z = self.z - stage_centres(codes, vectors)
        return (squared * self.weight).sum().item() / max(self.total, EPS)


def train_keys(
    train: Samples, held_out: Samples, plan: KeyPlan, checkpoints: Checkpoints, report: Report
) -> dict[str, Tensor]:
    """Train the stages of every layer. Each finished stage is a checkpoint, and is not trained again.

    Returns theta (layers, kv_heads, groups, stages, levels, P, 2) float16 and, per layer and stage, the relative
    squared errors train_error and held_out_error and the ``seconds`` it took, now or before an interruption (layers,
    stages). A stage depends only on those before it, so a codebook of more stages begins with the one of fewer.
    """
    layers, heads = train.keys.shape[:2]
    steps: list[tuple[Tensor, Tensor]] = []
    total = layers * plan.stages

    def tick() -> None:
        report(Progress("Training keys", len(steps), total, "stages of all layers"))

    for layer in range(layers):
        keys, check = train.keys[layer].float(), held_out.keys[layer].float()
        for found in _layer(keys, check, layer, plan, checkpoints, tick):
            steps.append(found)
            tick()
    theta, errors = (torch.stack(x).unflatten(0, (layers, plan.stages)) for x in zip(*steps, strict=True))
    return {
        "theta": theta.unflatten(2, (heads, -1)).movedim(1, 3).contiguous(),
        "train_error": errors[..., 0].contiguous(),
        "held_out_error": errors[..., 1].contiguous(),
        "seconds": errors[..., 2].contiguous(),
    }


def _layer(
    keys: Tensor, held_out: Tensor, layer: int, plan: KeyPlan, checkpoints: Checkpoints, tick: Callable[[], None]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Stages of one layer: theta (groups, levels, P, 2) float16 and [train error, held-out error, seconds] of each."""
    train, check = (Residual.of(x, plan.pairs) for x in (keys, held_out))
    for stage in range(plan.stages):
        name, began = stage_name(layer, stage), time.perf_counter()
        saved = checkpoints.load(name)
        if saved is None:
            seed = (plan.seed * 1000 + layer) * 1000 + stage
            theta = train_stage(train.z, train.weight, plan.levels, plan.em, seed, tick)
            saved = {"theta": theta, "seconds": torch.tensor(time.perf_counter() - began)}
            checkpoints.save(name, saved)
        theta = saved["theta"]
        yield theta, torch.tensor([train.subtract(theta), check.subtract(theta), saved["seconds"]])


def stage_name(layer: int, stage: int) -> str:
    """Name of a stage's checkpoint."""
    return f"layer{layer:03d}-stage{stage:02d}"
