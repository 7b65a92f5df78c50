"""What fits, for a terminal: what ``inspect`` tells from a model's configuration alone."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvq_core.cli.output import columns
from kvq_core.errors import ModelError, SpecError
from kvq_core.sizing.units import size_text

if TYPE_CHECKING:
    from kvq_core.shape import LayerKind
    from kvq_core.sizing.fit import Fit, FitRequest, Reserve

BATCHED = "new tokens that vLLM reads at once, its --max-num-batched-tokens (as vLLM takes by card)"
MOST = 2**24  # tokens and sequences that may be asked for


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--memory", metavar="SIZE", help="memory that weights and cache are to fit into, such as 24GB")
    parser.add_argument("--context", metavar="TOKENS", type=int, help="tokens of a sequence (at most 8,192 otherwise)")
    parser.add_argument("--batch", metavar="N", type=int, default=1, help="sequences at once (1)")
    parser.add_argument("--batched-tokens", metavar="TOKENS", type=int, help=BATCHED)


def is_at_once(arguments: argparse.Namespace) -> bool:
    """Whether a configuration is all there is, for which nothing is loaded."""
    from kvq_core.sizing.fit import is_configuration

    return is_configuration(arguments.model)


def asked_for(arguments: argparse.Namespace) -> "FitRequest":
    """Raises SpecError for a memory, or a number of tokens or sequences, that cannot be."""
    from kvq_core.sizing.fit import FitRequest, memory_of

    given = {name: getattr(arguments, name) for name in ("context", "batch", "batched_tokens")}
    for name, value in given.items():
        if value is not None and not 1 <= value <= MOST:
            raise SpecError(f"{name} = {value} is not allowed; give a whole number from 1 to {MOST:,}.")
    return FitRequest(memory=memory_of(arguments.memory) if arguments.memory else None, **given)


def fit_of_path(given: str, asked: "FitRequest") -> "Fit | None":
    """Of a folder with a configuration; None where there is none that says what its cache takes."""
    from kvq_core.inspection.fits import fit_of_folder

    try:
        return fit_of_folder(Path(given), asked) if (Path(given) / "config.json").is_file() else None
    except (ModelError, OSError):
        return None


def as_data(found: "Fit") -> dict[str, Any]:
    return found.model_dump(mode="json")


def describe_fit(found: "Fit") -> str:
    """Layers, weights, and a line for every format in every engine."""
    memories = next((row.contexts for each in found.formats for row in each.engines), {})
    head = ("format", "engine", "tensors", "reserved", "fits", *(f"{memory} GB" for memory in memories))
    rows = [row for each in found.formats for row in _rows(each.name, each.tensors, each.engines)]
    refused = [f"{each.name}: not here: {each.why_not}" for each in found.formats if each.why_not]
    parts = [_head(found), columns([head, *rows]) if rows else [], refused, _foot(found)]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _head(found: "Fit") -> list[str]:
    layers = "; ".join(f"{each.count} {_layer_words(each.holds)}" for each in found.layers)
    memory = "" if found.memory is None else f", in {size_text(found.memory, 3)}"
    return [
        f"What fits: {found.batch} x {found.context:,} tokens{memory}",
        f"{found.architecture}, layers: {layers}",
        f"weights: {_size(found.weights.nbytes)}, {found.weights.how}",
    ]


def _layer_words(layer: "LayerKind") -> str:
    kinds = {"full": "that read all tokens", "latent": "with a latent of all tokens", "none": "without keys"}
    if layer.reads is not None:
        return f"without keys that read those of layer {layer.reads}"
    kind = kinds.get(layer.kind) or f"{layer.kind} ({layer.window:,} tokens)"
    heads = f", {layer.kv_heads} x ({layer.key_dim} + {layer.value_dim}) channels" if layer.elements else ""
    return kind + heads + (" and a state" if layer.conv or layer.recurrent else "")


def _rows(name: str, tensors: int | None, engines: "tuple[Reserve, ...]") -> Iterator[tuple[str, ...]]:
    if tensors is None:
        return
    for row in engines:
        fits = {None: "not known", True: "yes", False: "no"}[row.fits]
        longest = ("not known" if tokens is None else f"{tokens:,}" for tokens in row.contexts.values())
        yield name, f"{row.engine} {row.word}", _size(tensors), _size(row.reserved), fits, *longest
    if not engines:
        yield name, "-", _size(tensors), "not known", "not known", *["not known"] * 5


def _foot(found: "Fit") -> list[str]:
    share, spare = found.allowance.share, found.allowance.bytes
    return [
        f"Under a memory's name: the longest context of {found.batch} such sequences that fits beside the weights. "
        f"{share:.0%} of it and {size_text(spare, 3)} are left for what is no cache; the rest is an assumption: "
        "docs/inspect.md.",
        *_at_once(found),
        *found.warnings,
        *(f"Not known: {each}." for each in found.unknown),
    ]


def _at_once(found: "Fit") -> Iterator[str]:
    """What an engine was taken to read at once, where sliding layers are given room for it."""
    if any(each.holds.kind == "sliding" for each in found.layers):
        rows = (row for each in found.formats for row in each.engines if row.batched_tokens)
        for engine, tokens in dict.fromkeys((row.engine, row.batched_tokens) for row in rows):
            yield (
                f"{engine}'s sliding layers hold a window and the tokens in flight: reserved here for {tokens:,} new "
                "ones at once, under a memory's name for what it reads on such a card, unless --batched-tokens says."
            )


def _size(nbytes: int | None) -> str:
    return "not known" if nbytes is None else size_text(nbytes, 3)
