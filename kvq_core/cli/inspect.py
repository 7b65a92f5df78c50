"""``python -m kvq_core inspect``: a model looked at before any run."""

import argparse
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from kvq_core.cli import fit as fit_cli
from kvq_core.cli.bar import Bar
from kvq_core.cli.output import as_json, columns
from kvq_core.errors import ModelError

if TYPE_CHECKING:
    from kvq_core.inspection.report import CacheFacts, Inspection, LayerFacts, LayerFigures
    from kvq_core.sizing.fit import Fit, FitRequest

EXAMPLES = (
    "python -m kvq_core inspect Qwen/Qwen2.5-0.5B-Instruct\n"
    "  python -m kvq_core inspect path/to/model.gguf --json\n"
    "  python -m kvq_core inspect HuggingFaceTB/SmolLM2-135M-Instruct --no-remedies\n"
    "  python -m kvq_core inspect folder/with/config.json --memory 24GB --context 32768 --batch 8"
)
_HEADER = (
    "layer",
    "key bias",
    "norm gain",
    "constant",
    "key outliers",
    "key rank",
    "value rank",
    "first 4",
    "score Δ",
    "centred",
)


def add_arguments(parser: argparse.ArgumentParser, quiet: Callable[[], None]) -> None:
    """What the command ``inspect`` takes; ``quiet`` silences libraries."""
    parser.add_argument("model", metavar="MODEL", help="model id, folder, or GGUF file")
    parser.add_argument("--revision", metavar="REV", help="Hub revision of the model")
    parser.add_argument("--no-remedies", action="store_true", help="leave out what takes longest: measuring remedies")
    fit_cli.add_arguments(parser)
    parser.set_defaults(at_once=fit_cli.is_at_once, quiet=quiet)


def inspect(arguments: argparse.Namespace) -> None:
    """Look at a model and print what was found; of one that cannot be run, what its configuration says."""
    from kvq_core.inspection.fits import fit_of_folder

    asked = fit_cli.asked_for(arguments)
    if fit_cli.is_at_once(arguments):
        arguments.quiet()
        fits = fit_of_folder(Path(arguments.model), asked)
        _print_fit(arguments, fits, "its folder has no weights: what needs them or a run is not known")
        return
    try:
        found, fits = _looked_at(arguments, asked)
    except ModelError as error:
        from kvq_core.models.naming import Incomplete

        if isinstance(error, Incomplete) or (known := fit_cli.fit_of_path(arguments.model, asked)) is None:
            raise
        _print_fit(arguments, known, str(error))
        return
    if arguments.json:
        print(as_json({**found.model_dump(mode="json"), "fits": fit_cli.as_data(fits)}))
    else:
        print(f"{describe_inspection(found)}\n\n{fit_cli.describe_fit(fits)}")


def _looked_at(arguments: argparse.Namespace, asked: "FitRequest") -> "tuple[Inspection, Fit]":
    """Raises ModelError where the model cannot be had, or not be run."""
    arguments.quiet()
    from kvq_core.inspection.fits import fit_of_loaded
    from kvq_core.inspection.look import looking
    from kvq_core.models import load

    with redirect_stdout(sys.stderr), Bar() as bar:
        found = bar.last(looking(arguments.model, arguments.revision, remedies=not arguments.no_remedies))
        return found, fit_of_loaded(load(arguments.model, arguments.revision), asked)


def _print_fit(arguments: argparse.Namespace, fits: "Fit", unknown: str) -> None:
    """What fits alone, and why nothing else is known."""
    if arguments.json:
        told = {"model": arguments.model, "title": fits.title, "unknown": unknown, "fits": fit_cli.as_data(fits)}
        print(as_json(told))
    else:
        print(f"{fits.title}\nNot known: {unknown}\n\n{fit_cli.describe_fit(fits)}")


def describe_inspection(found: "Inspection") -> str:
    """All of it for a terminal: the sentence, facts, a line a layer, remedies, formats, what is published."""
    parts = [
        [found.title, *filter(None, [found.quantization]), *facts_lines(found.facts)],
        [found.sentence],
        columns([_HEADER, *(_layer(found.facts.layers[own.layer], own) for own in found.figures)])
        if found.figures
        else [],
        _remedies(found),
        _formats(found),
        [f"published, not measured here: {said}" for said in found.published],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def facts_lines(facts: "CacheFacts") -> list[str]:
    """What weights and configuration say, in two lines, and a third where layers differ."""
    from kvq_core.inspection.report import spans

    base = "" if facts.rope_base is None else f" with base {facts.rope_base:,.0f}"
    normed = any(layer.key_norm_gain is not None for layer in facts.layers)
    unlike = "; ".join(f"layers {spans(layers)}: {what}" for what, layers in facts.unlike.items())
    return [
        f"{facts.architecture}: {len(facts.layers)} layers, {facts.query_heads} query heads on {facts.kv_heads} KV "
        f"heads (GQA {facts.query_groups}), head_dim {facts.head_dim}, context {facts.context:,}",
        f"RoPE {facts.rope}{base}, {'a norm on the keys' if normed else 'no norm on the keys'}, "
        f"{'no ' if facts.usual_bias is None else ''}key bias; {facts.token_bytes:,} bytes a token in fp16",
        *([unlike] if unlike else []),
    ]


def _layer(facts: "LayerFacts", figures: "LayerFigures") -> tuple[str, ...]:
    numbers = (figures.constant, figures.key_outliers, figures.key_rank, figures.value_rank)
    return (
        str(facts.layer),
        *("-" if norm is None else f"{norm:.1f}" for norm in (facts.key_bias, facts.key_norm_gain)),
        *("-" if value is None else f"{value:.1f}" for value in numbers),
        f"{figures.first_tokens:.0%}",
        f"{figures.score_error:.2f}",
        "-" if figures.centred_score_error is None else f"{figures.centred_score_error:.2f}",
    )


def _remedies(found: "Inspection") -> list[str]:
    if found.plain_kld is None:
        return []
    rows = [
        ("remedy", "KLD", f"bytes more at {found.bytes_at:,} tokens"),
        ("none (keys per token, 4 bits)", f"{found.plain_kld:.4f}", "0"),
    ]
    for each in found.remedies:
        refused = f"not here: {each.refused}"
        rows.append(
            (
                each.name,
                "-" if each.kld is None else f"{each.kld:.4f}",
                refused if each.extra_bytes is None else f"{each.extra_bytes:,}",
            )
        )
    return columns(rows)


def _formats(found: "Inspection") -> list[str]:
    lengths = sorted({tokens for each in found.formats for tokens in each.nbytes})
    rows = [("format", *(f"{tokens:,} tokens" for tokens in lengths), "at its defaults")]
    for each in found.formats:
        sizes = [f"{each.nbytes[tokens] / 1e6:,.1f} MB" if tokens in each.nbytes else "-" for tokens in lengths]
        told = each.settings if each.why_not is None else f"not here: {each.why_not}"
        rows.append((each.method, *sizes, "; ".join((told, *each.counted))))
    return columns(rows)
