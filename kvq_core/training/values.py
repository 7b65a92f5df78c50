"""Training of value encoders and codebooks by gradient descent, a layer at a time."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvq_core.codebooks.encoder import EPS, OPTIONS, Encoder, from_stored, to_stored
from kvq_core.machine.progress import Progress, Report
from kvq_core.training.checkpoints import Checkpoints
from kvq_core.training.collect import Samples

_SHIFT = 3.0  # GELU(x + 3) is close to x + 3 for normalized x: the encoder starts linear


@dataclass(frozen=True)
class ValuePlan:
    """``bits`` digits an element, so Nc = bits * d codewords; ``steps`` of Adam for each bit, ``batch`` tokens each."""

    bits: int
    steps: int
    seed: int
    batch: int = 96
    rate: float = 3e-3
    noisy: float = 0.2  # share of the steps that sample; later ones take the most likely option, as inference does


def train_values(
    train: Samples, held_out: Samples, plan: ValuePlan, checkpoints: Checkpoints, report: Report
) -> dict[str, Tensor]:
    """Train every layer; each finished layer is a checkpoint. Returns to_stored's tensors with layers first, the
    relative squared errors train_error and held_out_error (layers,), measured through the stored weights, and the
    ``seconds`` each layer took (layers,), now or before an interruption."""
    done: list[dict[str, Tensor]] = []
    layers = train.values.shape[0]

    def tick() -> None:
        report(Progress("Training values", len(done), layers, "layers"))

    for layer in range(layers):
        name, began = f"layer{layer:03d}", time.perf_counter()
        stored = checkpoints.load(name)
        if stored is None:
            v, check = (_flat(s.values[layer]) for s in (train, held_out))
            stored = to_stored(train_layer(v, plan, plan.seed * 1000 + layer, tick))
            held = from_stored(stored)
            stored |= {"train_error": error(held, v)[None], "held_out_error": error(held, check)[None]}
            stored["seconds"] = torch.tensor([time.perf_counter() - began])
            checkpoints.save(name, stored)
        done.append(stored)
        tick()
    return {name: torch.cat([stored[name] for stored in done]) for name in done[0]}


def train_layer(v: Tensor, plan: ValuePlan, seed: int, tick: Callable[[], None] = lambda: None) -> Encoder:
    """Minimise the squared error of decoded values v (1, n, d): Gumbel-softmax, straight through (Section 4.1).

    The paper trains through the model's loss scale with its weights frozen; here the loss is that error alone.
    ``tick`` is called before every step; what it raises ends the work.
    """
    generator = torch.Generator().manual_seed(seed)
    encoder = start(v, plan.bits, generator)
    learned = {name: getattr(encoder, name).requires_grad_() for name in ("w1", "b1", "w2", "b2", "codebook")}
    optimizer = torch.optim.Adam(list(learned.values()), lr=plan.rate, betas=(0.9, 0.99))
    steps = plan.steps * plan.bits
    # its warm-up, a tenth, has to be longer than one step
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, plan.rate, total_steps=max(steps, 11), pct_start=0.1)
    x, prescale = encoder.normalize(v)
    energy = v.square().mean()
    for step in range(steps):
        tick()
        at = torch.randint(v.shape[1], (min(plan.batch, v.shape[1]),), generator=generator)
        digits = relaxed_digits(encoder.logits(x[:, at]), generator if step < plan.noisy * steps else None)
        loss = (encoder.decode(digits, prescale[:, at]) - v[:, at]).square().mean() / energy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return replace(encoder, **{name: tensor.detach() for name, tensor in learned.items()})


def relaxed_digits(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """Digits (layers, n, Nc) of the chosen options, with the gradient of the softmax; Gumbel noise where asked for."""
    if generator is not None:
        uniform = torch.rand(logits.shape, generator=generator).clamp_min(1e-20)
        logits = logits - torch.log((-torch.log(uniform)).clamp_min(1e-20))
    parts = logits.movedim(-1, 0).contiguous()  # options first: several times faster than reductions over four in a row
    weights = torch.exp(parts - parts.detach().amax(0))
    soft = weights / weights.sum(0)
    hard = (parts == parts.detach().amax(0)).to(soft.dtype)
    digits = []
    for digit in (0, 1):
        options = [o for o in range(4) if OPTIONS[o][digit]]
        expected = soft[options[0]] + soft[options[1]]
        digits.append(hard[options].sum(0) + (expected - expected.detach()))
    return torch.stack(digits, -1).flatten(-2)


def start(v: Tensor, bits: int, generator: torch.Generator) -> Encoder:
    """An encoder that already works, v (1, n, d): two bits for each of Nc / 2 axes of equal variance.

    The axes are the principal directions of the normalized values, as many as there are groups, under a random
    rotation that spreads the variance. A group's codewords a q and -2a q (a the deviation along q) offer the levels
    0, a, -2a, -a, a uniform grid 1.5a to each side of -a/2; signs alternate from axis to axis, so that these offsets
    cancel in the sum. Nearest-level choice is linear in the input: -(t - l)^2 = 2tl - l^2 up to what options share.
    Gradient descent from random weights ends at twice this scheme's final error.
    """
    d = v.shape[-1]
    groups = bits * d // 2
    blank = torch.zeros(1, d)
    scale = v.abs().mean(1).clamp_min(EPS)
    x, _ = Encoder(scale, blank, blank, blank, blank, blank).normalize(v)
    axes = torch.linalg.eigh(x[0].T @ x[0] / x.shape[1]).eigenvectors.flip(-1)  # (d, d), strongest first
    turn = torch.linalg.qr(torch.randn(groups, groups, generator=generator)).Q
    axes[:, :groups] = axes[:, :groups] @ turn
    spread = (x[0] @ axes[:, :groups]).square().mean(0).sqrt().clamp_min(EPS)  # (groups,)
    sign = 1 - 2.0 * (torch.arange(groups) % 2)
    q = axes[:, :groups].T * (spread * sign)[:, None]  # (groups, d)
    codebook = torch.stack([q, -2 * q], 1).flatten(0, 1)
    grid = torch.tensor([1.0, -2.0, -1.0, 0.0]) + 0.5  # levels of OPTIONS in units of spread, recentred
    w2 = torch.zeros(d, groups, 4)
    w2[torch.arange(groups), torch.arange(groups)] = 2 * grid * (sign / spread)[:, None]
    w2 = w2.flatten(1)
    b2 = -grid.square().repeat(groups) - _SHIFT * w2.sum(0)

    def noisy(t: Tensor, size: float) -> Tensor:
        return (t + size * torch.randn(t.shape, generator=generator))[None]

    return Encoder(
        scale, noisy(axes, 0.01), torch.full((1, d), _SHIFT), noisy(w2, 0.02), b2[None], noisy(codebook, 0.02)
    )


def error(encoder: Encoder, v: Tensor) -> Tensor:
    """||v - v'||^2 / ||v||^2 over tokens v (1, n, d), with the choices and the float16 prescale a cache would hold."""
    x, prescale = encoder.normalize(v)
    decoded = encoder.decode(encoder.digits(encoder.logits(x)).float(), prescale.half().float())
    return (decoded - v).square().sum() / v.square().sum().clamp_min(EPS)


def _flat(values: Tensor) -> Tensor:
    """(kv_heads, tokens, head_dim) float16 -> (1, tokens, d) float32."""
    return values.float().transpose(0, 1).flatten(1)[None]
