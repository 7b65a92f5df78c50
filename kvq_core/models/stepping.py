"""Products of a model in a run. Those of decode steps wait for their weights: they are read in a layout made for few
rows, by all cores, each its own part of them. A row is summed in one order there whatever rows stand beside it, so
prompts and given answers are computed by these products, too, however many tokens a pass takes.

torch divides a product of a few rows too, but wakes the other cores for each; here they are woken once for a layer's
whole MLP, which is most of a model, and once for the output head.
"""

import threading
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from kvq_core.machine import threads
from kvq_core.machine.memory import free_bytes

# transformers' modules that compute down_proj(act_fn(gate_proj(x)) * up_proj(x)) and nothing else
GATED = {"LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP"}

MOST = 4 << 30  # bytes of weights that are held a second time
SPARE = 4  # times what they take has to be free

Product = Callable[[Tensor], Tensor]


class StepModels:
    """A model's twins for runs, each made once: what runs of one model share. Where memory is short of a second
    layout they read the weights as the model holds them, for results that differ in their last digits are better than
    none."""

    def __init__(self, model: nn.Module):
        self.model = model
        self._twins: dict[int, nn.Module] = {}
        self._making = threading.Lock()  # two runs that begin at once share one

    def by(self, cores: int) -> nn.Module:
        """See ``step_model``."""
        with self._making:
            if cores not in self._twins:
                needed = laid_out_bytes(self.model)
                fits = 0 < needed <= MOST and SPARE * needed <= free_bytes()
                self._twins[cores] = step_model(self.model, cores, fits)
            return self._twins[cores]

    def forget(self) -> None:
        """Hold none any more; runs that use one go on with it."""
        self._twins.clear()


def step_model(model: nn.Module, cores: int, laid_out: bool) -> nn.Module:
    """A causal language model whose output head and MLPs share their products among the cores, which takes sums in
    another order; those of other kinds are left whole.

    ``laid_out``: matrices that oneDNN takes are held a second time, in the layout it reads few rows with. SmolLM2's in
    a step of 10 rows take 54 ms on one core in place of 107, of 2 to 64 rows less or as much, of one 42 in place of 38.

    The model itself stays as it is, for other runs that use it meanwhile: only what leads to these modules is copied,
    everything else is the model's own.
    """
    parts: dict[nn.Module, nn.Module] = {}
    if cores > 1:
        head = model.get_output_embeddings()  # type: ignore[operator]
        parts |= {head: DividedHead(head, cores, laid_out)} if _plain(head) else {}
        for module in model.modules():
            if type(module).__name__ in GATED and all(map(_plain, _matrices(module))):
                parts[module] = DividedMLP(module, cores, laid_out)
    if laid_out:
        divided = {matrix for module in parts for matrix in module.modules()}
        parts |= {each: Matrix(each) for each in _taken(model) if each not in divided}
    return replace_modules(model, parts) if parts else model


def laid_out_bytes(model: nn.Module) -> int:
    """What a layout of its own holds a second time, about."""
    return sum(matrix.weight.nbytes for matrix in _taken(model))


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


def _taken(model: nn.Module) -> list[nn.Linear]:
    """The matrices of a model that oneDNN takes."""
    return [module for module in model.modules() if type(module) is nn.Linear and _takes(module)]


def _takes(matrix: nn.Linear) -> bool:
    """Whether oneDNN, where torch has it, takes a matrix."""
    weight = matrix.weight
    return torch.backends.mkldnn.is_available() and weight.device.type == "cpu" and weight.dtype == torch.float32


def laid_out_linear(weight: Tensor, bias: Tensor | None, laid_out: bool) -> Product:
    """``linear`` of x (..., inputs) with a weight (outputs, inputs), in torch's layout or in oneDNN's own."""
    if not laid_out:
        return partial(linear, weight=weight, bias=bias)
    held = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
    of = torch.ops.mkldnn._linear_pointwise.default

    def compute(x: Tensor) -> Tensor:
        if x.numel() > x.shape[-1]:
            return of(x, held, bias, "none", [], "")
        # of a single row oneDNN takes some sums in another order than of more
        return of(torch.cat((x, x), -2), held, bias, "none", [], "")[..., :1, :]

    return compute


class Matrix(nn.Module):
    """A matrix in a layout of its own."""

    def __init__(self, whole: nn.Linear):
        super().__init__()
        self.whole, self.product = whole, laid_out_linear(whole.weight, whole.bias, True)

    @property
    def weight(self) -> Tensor:
        """Some models look at their matrices."""
        return self.whole.weight

    @property
    def bias(self) -> Tensor | None:
        return self.whole.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


class DividedHead(nn.Module):
    """A matrix whose outputs are shared out."""

    def __init__(self, head: nn.Linear, cores: int, laid_out: bool):
        super().__init__()
        self.head, self.parts = head, threads.shares(head.out_features, cores)
        self.products = [laid_out_linear(head.weight[part], None, laid_out and _takes(head)) for part in self.parts]

    def forward(self, x: Tensor) -> Tensor:
        out = x.new_empty(*x.shape[:-1], self.head.out_features)

        def compute(part: slice, of: Product) -> None:
            out[..., part] = of(x)

        threads.together([partial(compute, part, of) for part, of in zip(self.parts, self.products, strict=True)])
        return out


class DividedMLP(nn.Module):
    """A gated MLP whose intermediate channels are shared out: each share ends in a sum to the whole output."""

    def __init__(self, mlp: nn.Module, cores: int, laid_out: bool):
        super().__init__()
        self.mlp = mlp
        gate, up, down = (matrix.weight for matrix in _matrices(mlp))
        laid_out = laid_out and all(map(_takes, _matrices(mlp)))
        self.shares = [
            [laid_out_linear(weight, None, laid_out) for weight in (gate[part], up[part], down[:, part])]
            for part in threads.shares(len(up), cores)
        ]

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        sums = x.new_empty(len(self.shares), len(rows), _matrices(self.mlp)[2].out_features)

        def compute(share: list[Product], out: Tensor) -> None:
            gate, up, down = share
            out.copy_(down(self.mlp.act_fn(gate(rows)) * up(rows)))  # type: ignore[operator]

        threads.together([partial(compute, share, out) for share, out in zip(self.shares, sums, strict=True)])
        return sums.sum(0).view(*x.shape[:-1], -1)
