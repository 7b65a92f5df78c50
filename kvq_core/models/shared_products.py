"""Products of a model whose weights are read by all cores, each its own part of them, in a decode step.

A product of a few rows waits for its weights. torch divides one too, but wakes the other cores for each; here they are
woken once for a layer's whole MLP, which is most of a model, and once for the output head.
"""

from collections.abc import Callable, Mapping
from copy import copy
from functools import partial

from torch import Tensor, nn
from torch.nn.functional import linear

from kvq_core.machine import threads
from kvq_core.machine.blas import weights_first

# transformers' modules that compute down_proj(act_fn(gate_proj(x)) * up_proj(x)) and nothing else
GATED = {"LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP"}

FEW = 3  # rows up to which the weights times the rows may be faster than the rows times the weights

Product = Callable[[Tensor, Tensor], Tensor]


def few_rows(x: Tensor, weight: Tensor) -> Tensor:
    """``linear`` of x (..., inputs) with weight (outputs, inputs), in the order that is faster for FEW rows on this
    processor, of sums too."""
    rows = x.flatten(0, -2)
    if len(rows) > FEW or x.device.type != "cpu" or not weights_first():
        return linear(x, weight)
    taken = rows.repeat(2, 1) if len(rows) == 1 else rows
    return (weight @ taken.T).T[: len(rows)].reshape(*x.shape[:-1], -1)


def divide_products(model: nn.Module, cores: int, few: bool = False) -> nn.Module:
    """A causal language model whose output head and MLPs share their products among the cores, which takes sums in
    another order; those of other kinds are left whole. ``few``: for steps of few rows, with ``few_rows`` everywhere.

    The model itself stays as it is, for other runs that use it meanwhile: only what leads to these modules is copied,
    the weights and everything else are the model's own.
    """
    parts: dict[nn.Module, nn.Module] = {}
    if few:
        parts |= {module: FewRows(module) for module in model.modules() if type(module) is nn.Linear}
    product = few_rows if few else linear
    if cores > 1:
        head = model.get_output_embeddings()  # type: ignore[operator]
        parts |= {head: DividedHead(head, cores, product)} if _plain(head) else {}
        for module in model.modules():
            if type(module).__name__ in GATED and all(map(_plain, _matrices(module))):
                parts[module] = DividedMLP(module, cores, product)
    return replace_modules(model, parts) if parts else model


def replace_modules(module: nn.Module, parts: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """A module in which some are replaced; itself where it has none of them. The module itself stays as it is."""
    if module in parts:
        return parts[module]
    inside = {name: part if part is None else replace_modules(part, parts) for name, part in module._modules.items()}
    if all(part is module._modules[name] for name, part in inside.items()):
        return module
    twin = copy(module)
    twin._modules = inside
    return twin


def _matrices(mlp: nn.Module) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    return mlp.gate_proj, mlp.up_proj, mlp.down_proj  # type: ignore[return-value]


def _plain(module: nn.Module | None) -> bool:
    return type(module) is nn.Linear and module.bias is None


class FewRows(nn.Module):
    """A matrix that is multiplied by ``few_rows``."""

    def __init__(self, whole: nn.Linear):
        super().__init__()
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        out = few_rows(x, self.whole.weight)
        return out if self.whole.bias is None else out + self.whole.bias


class DividedHead(nn.Module):
    """A matrix whose outputs are shared out."""

    def __init__(self, head: nn.Linear, cores: int, product: Product = linear):
        super().__init__()
        self.head, self.cores, self.product = head, cores, product

    def forward(self, x: Tensor) -> Tensor:
        out = x.new_empty(*x.shape[:-1], self.head.out_features)

        def compute(part: slice) -> None:
            out[..., part] = self.product(x, self.head.weight[part])

        threads.together([partial(compute, part) for part in threads.shares(self.head.out_features, self.cores)])
        return out


class DividedMLP(nn.Module):
    """A gated MLP whose intermediate channels are shared out: each share ends in a sum to the whole output."""

    def __init__(self, mlp: nn.Module, cores: int, product: Product = linear):
        super().__init__()
        self.mlp, self.cores, self.product = mlp, cores, product

    def forward(self, x: Tensor) -> Tensor:
        gate, up, down = (matrix.weight for matrix in _matrices(self.mlp))
        parts = threads.shares(len(up), self.cores)
        rows = x.flatten(0, -2)
        sums = x.new_empty(len(parts), len(rows), len(down))

        def compute(part: slice, out: Tensor) -> None:
            act, product = self.mlp.act_fn, self.product
            inner = act(product(rows, gate[part])) * product(rows, up[part])  # type: ignore[operator]
            out.copy_(product(inner, down[:, part]))

        threads.together([partial(compute, part, out) for part, out in zip(parts, sums, strict=True)])
        return sums.sum(0).view(*x.shape[:-1], -1)
