"""A function of keys and values as a method whose bits its author declares: nothing is packed, and nothing counted."""

import hashlib
import math
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, ClassVar

import torch
from kvq_kernels import Path
from torch import Tensor

from kvq_core.codecs.blocks import Block, DeclaredBlock
from kvq_core.codecs.codec import Codec
from kvq_core.codecs.forms import Packed
from kvq_core.codecs.window import Window
from kvq_core.errors import MethodError, SpecError, excerpt
from kvq_core.methods.base import Fitted, Method, Prompt
from kvq_core.methods.guard import Origin
from kvq_core.methods.known import methods, register
from kvq_core.methods.own import origin_now

Function = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
MARK = "bits declared, not counted"
MOST = 32.0  # bits of an element


@dataclass(frozen=True)
class _Call:
    """The function on tensors of one shape, which it may overwrite."""

    function: Function

    def __call__(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Raises MethodError where it gives no such pair."""
        given: Any = self.function(keys.clone(), values.clone())
        if not isinstance(given, tuple | list) or len(given) != 2 or not all(isinstance(x, Tensor) for x in given):
            raise MethodError("the function gave no pair of tensors (keys, values)")
        for name, x in zip(("keys", "values"), given, strict=True):
            if x.shape != keys.shape:
                raise MethodError(f"the function gave {name} {tuple(x.shape)} for {tuple(keys.shape)}")
            if not torch.isfinite(x).all():
                raise MethodError(f"the function gave {name} that are NaN or infinite")
        return given[0].float().detach(), given[1].float().detach()


@dataclass
class _Together:
    """What the function makes of keys and values of the same tokens of a prompt, once."""

    call: _Call
    keys: Tensor
    values: Tensor
    made: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __call__(self, start: int, tokens: int) -> tuple[Tensor, Tensor]:
        span = start, start + tokens
        if span[1] > self.keys.shape[-2]:
            raise MethodError("its function was given the first prompt, and a later turn comes by itself")
        if span not in self.made:
            self.made[span] = self.call(*(x[..., slice(*span), :] for x in (self.keys, self.values)))
        return self.made[span]


@dataclass(frozen=True)
class FunctionCodec(Codec):
    """Keys (``at`` 0) or values (1) as the function gives them; a block's bytes are those of ``declared`` bits."""

    call: _Call
    at: int
    declared: float
    together: _Together | None = None

    def encode(self, x: Tensor, start: int) -> Block:
        if self.together is not None:
            read = self.together(start, x.shape[-2])[self.at]
        else:
            read = self.call(x, x)[self.at]  # fit has seen that it does not matter what stands beside it
        return DeclaredBlock(x.shape[-2], {"read": read}, math.ceil(x.numel() * self.declared / 8))

    def decode(self, block: Block) -> Tensor:
        return block.tensors["read"]

    def bits(self, block: Block) -> Tensor:
        return torch.tensor(self.declared).view(1, 1, 1, 1)

    def packed(self, path: Path) -> Packed:
        raise MethodError(f"{MARK}: there is nothing packed to run")


class Declared(Method):
    """What all functions have in common; a function is a class of its own, which ``declare`` makes."""

    function: ClassVar[Function]
    declared: ClassVar[tuple[float, float]]
    tokens: ClassVar[int]
    together: ClassVar[bool]

    def windows(self) -> tuple[Window, Window]:
        window = Window(step=self.tokens, prompt_only=self.together)
        return window, window

    @property
    def not_chunked(self) -> str | None:
        return "its function takes the whole prompt, keys and values together" if self.together else None

    def fit(self, prompt: Prompt) -> Fitted:
        call = _Call(type(self).function)
        together = _Together(call, prompt.keys, prompt.values) if self.together else None
        if together is None:
            _check_apart(call, prompt.keys, prompt.values)
        key, value = (FunctionCodec(call, at, bits, together) for at, bits in enumerate(self.declared))
        return Fitted(key, value, (self.summary(),))

    def summary(self) -> str:
        key, value = self.declared
        return f"{f'{key:g}' if key == value else f'K{key:g} V{value:g}'} {MARK}"


def _check_apart(call: _Call, keys: Tensor, values: Tensor) -> None:
    """Raises MethodError where keys and values cannot be handed to the function one without the other."""
    both, apart = call(keys, values), (call(keys, keys)[0], call(values, values)[1])
    for name, one, alone in zip(("keys", "values"), both, apart, strict=True):
        if not torch.allclose(one, alone, rtol=1e-4, atol=1e-6):
            other = "values" if name == "keys" else "keys"
            raise MethodError(
                f"what its function makes of {name} depends on the {other}, or on chance; with together=True it is "
                "given the prompt's keys and values at once, and generated tokens stay in fp16"
            )


def declare(
    function: Function,
    bits: float | tuple[float, float],
    name: str | None = None,
    tokens: int = 1,
    together: bool = False,
) -> type[Method]:
    """The method of a function, offered under ``name``; see ``kvq_core.from_function``."""
    declared = _bits(bits)
    if not callable(function):
        raise SpecError(f"from_function takes a function (keys, values) -> (keys, values), not {excerpt(function)}.")
    if not isinstance(tokens, int) or not 1 <= tokens <= 4096:
        raise SpecError(f"tokens = {excerpt(tokens)} is not allowed; give a whole number from 1 to 4096.")
    whole = repr((declared, tokens, together))
    loading = origin_now()
    origin = loading or Origin("a function", hashlib.sha256((whole + fingerprint(function)).encode()).hexdigest())
    called = re.sub(r"\W|^(?=[\d_])", "", getattr(function, "__name__", "")) or "function"
    wanted = name if name is not None else called[:30]
    if loading is None:
        wanted = _free(wanted, origin)
    doc = " ".join((function.__doc__ or "").split("\n\n")[0].split())
    said = f"{doc} " if doc else ""
    members = {
        "__doc__": f"{said}A function of one's own: {MARK}; nothing is packed.",
        "__module__": getattr(function, "__module__", None) or __name__,
        "name": wanted,
        "title": wanted,
        "function": staticmethod(function),
        "declared": declared,
        "tokens": tokens,
        "together": bool(together),
    }
    return register(type(f"Declared_{called}", (Declared,), members), origin)


def _bits(bits: Any) -> tuple[float, float]:
    pair = tuple(bits) if isinstance(bits, tuple | list) else (bits, bits)
    numbers = [b for b in pair if isinstance(b, int | float) and not isinstance(b, bool) and 0 < b <= MOST]
    if len(pair) != 2 or len(numbers) != 2:
        raise SpecError(f"bits = {excerpt(bits)} is not allowed; give a number up to {MOST:g}, or (keys, values).")
    return float(numbers[0]), float(numbers[1])


def _free(name: str, origin: Origin) -> str:
    """The name, with a number behind it where it is another's."""
    known, wanted, n = methods(), name, 2
    while wanted in known and getattr(known[wanted], "guards", None) != origin:
        wanted, n = f"{name}_{n}", n + 1
    return wanted


def fingerprint(function: Any) -> str:
    """Text that two functions share only where they compute the same: code, constants, defaults, plain values that they
    close over or find as globals, and functions of the same package that they call; those of other packages count by
    name. One that refers to anything else gets a text of its own every time, so that no stored run is taken for its."""
    return repr(_told(function, (getattr(function, "__module__", None) or "").partition(".")[0], []))


def _told(value: Any, package: str, seen: list[Any]) -> Any:
    if value is None or isinstance(value, bool | int | float | str | bytes | complex):
        return repr(value)
    if isinstance(value, tuple | list):
        return [type(value).__name__, *(_told(each, package, seen) for each in value)]
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if isinstance(value, ModuleType):
        return ["module", value.__name__]
    if isinstance(value, CodeType):
        return [value.co_code.hex(), value.co_names, [_told(each, package, seen) for each in value.co_consts]]
    if isinstance(value, BuiltinFunctionType | type | FunctionType) and _elsewhere(value, package):
        return ["name", value.__module__, value.__qualname__]
    if any(value is each for each in seen):
        return ["again", next(at for at, each in enumerate(seen) if each is value)]
    if isinstance(value, FunctionType):
        seen.append(value)
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        found = [value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__]
        parts = [value.__code__, value.__defaults__, list((value.__kwdefaults__ or {}).items()), cells, found]
        return [_told(each, package, seen) for each in parts]
    return ["unknown", uuid.uuid4().hex]


def _elsewhere(value: Any, package: str) -> bool:
    """Whether it belongs to another package than the function that is asked about."""
    return (value.__module__ or "").partition(".")[0] not in ("__main__", package)


def _names(code: CodeType) -> list[str]:
    """Names that code, or code within it, looks up."""
    inner = (name for each in code.co_consts if isinstance(each, CodeType) for name in _names(each))
    return list(dict.fromkeys((*code.co_names, *inner)))
