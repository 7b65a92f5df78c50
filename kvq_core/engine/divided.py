"""Products of a model whose weights are read by all cores, each its own part of them, in a decode step.

A product of a few rows waits for its weights. torch divides one too, but wakes the other cores for each; here they are
woken once for a layer's whole MLP, which is most of a model, and once for the output head.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from kvq_core.engine import threads

Forward = Callable[[Tensor], Tensor]

# transformers' modules that compute down_proj(act_fn(gate_proj(x)) * up_proj(x)) and nothing else
GATED = {"LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP"}


@contextmanager
def divided(forwards: Iterable[tuple[nn.Module, Forward]]) -> Iterator[None]:
    """Meanwhile these modules compute as ``sharing`` says. Sums are taken in another order."""
    with ExitStack() as stack:
        for module, forward in forwards:
            module.forward = forward  # of this module alone
            stack.callback(delattr, module, "forward")
        yield


def sharing(model: nn.Module, cores: int) -> Iterator[tuple[nn.Module, Forward]]:
    """The output head and the MLPs of a causal language model, with forwards that share their products among the cores;
    none for one core, and none of modules of other kinds."""
    if cores < 2:
        return
    head = model.get_output_embeddings()  # type: ignore[operator]
    if _plain(head):
        yield head, partial(_by_outputs, head, cores)
    for module in model.modules():
        if type(module).__name__ in GATED and all(map(_plain, _matrices(module))):
            yield module, partial(_by_channels, module, cores)


def _matrices(mlp: nn.Module) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    return mlp.gate_proj, mlp.up_proj, mlp.down_proj  # type: ignore[return-value]


def _plain(module: nn.Module | None) -> bool:
    return type(module) is nn.Linear and module.bias is None


def _by_outputs(head: nn.Linear, cores: int, x: Tensor) -> Tensor:
    """A matrix whose outputs are shared out."""
    out = x.new_empty(*x.shape[:-1], head.out_features)

    def compute(part: slice) -> None:
        out[..., part] = linear(x, head.weight[part])

    threads.together([partial(compute, part) for part in threads.shares(head.out_features, cores)])
    return out


def _by_channels(mlp: nn.Module, cores: int, x: Tensor) -> Tensor:
    """A gated MLP whose intermediate channels are shared out: each share ends in a sum to the whole output."""
    gate, up, down = (matrix.weight for matrix in _matrices(mlp))
    parts = threads.shares(len(up), cores)
    rows = x.flatten(0, -2)
    sums = x.new_empty(len(parts), len(rows), len(down))

    def compute(part: slice, out: Tensor) -> None:
        inner = mlp.act_fn(linear(rows, gate[part])) * linear(rows, up[part])  # type: ignore[operator]
        torch.mm(inner, down[:, part].T, out=out)

    threads.together([partial(compute, part, out) for part, out in zip(parts, sums, strict=True)])
    return sums.sum(0).view(*x.shape[:-1], -1)
