"""``python -m kvq_core measure``: lanes run one at a time with their caches packed, timed and weighed."""

import argparse
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from kvq_core.cli.bar import Bar
from kvq_core.cli.comparison import add_comparison, comparison
from kvq_core.cli.output import as_json, columns
from kvq_core.errors import SpecError, excerpt

if TYPE_CHECKING:
    from kvq_core.packed import LaneMeasurement
    from kvq_core.spec import ComparisonSpec

EXAMPLES = (
    "python -m kvq_core measure --preset first-look\n"
    "  python -m kvq_core measure --spec my.toml --tokens 4096 --new-tokens 64\n"
    "  python -m kvq_core measure --preset long-prompt --limit context --limit batch --json"
)
COLUMNS = ("lane", "path", "tokens", "ms/token", "cache MB", "of unquantized", "peak MB", "context", "batch")


def add_arguments(parser: argparse.ArgumentParser, quiet: Callable[[], None]) -> None:
    add_comparison(parser, "lanes and prompt of a ready experiment")
    parser.add_argument("--tokens", type=int, metavar="N", help="repeat or cut the prompt to this length")
    parser.add_argument("--new-tokens", type=int, default=32, metavar="N", help="steps (32)")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="rows with the same prompt (1)")
    parser.add_argument(
        "--path", choices=("auto", "triton", "torch"), default="auto", help="which implementation runs (auto)"
    )
    parser.add_argument(
        "--limit", action="append", choices=("context", "batch"), default=[], help="also find the most that fits (GPU)"
    )
    parser.set_defaults(quiet=quiet)


def measure_lanes(arguments: argparse.Namespace) -> None:
    """Measure the unquantized cache and every lane that has packed execution, and print them."""
    spec, request = comparison(arguments), _request(arguments)
    arguments.quiet()
    with redirect_stdout(sys.stderr):
        measured, left_out = _measure(spec, request)
    if arguments.json:
        found = {"measured": [m.model_dump(mode="json") for m in measured], "left_out": left_out}
        print(as_json(found))
    else:
        print(measured_table(measured, left_out))


def _measure(spec: "ComparisonSpec", request: Any) -> tuple[list["LaneMeasurement"], dict[str, str]]:
    from kvq_core.packed import LaneMeasurement
    from kvq_core.packed.lanes import SkippedLane, measure_spec

    measured, left_out = [], {}
    with Bar() as bar:
        for news in measure_spec(spec, request):
            if isinstance(news, LaneMeasurement):
                measured.append(news)
            elif isinstance(news, SkippedLane):
                left_out[news.label] = news.reason
            else:
                bar(news)
    return measured, left_out


def measured_table(measured: list["LaneMeasurement"], left_out: dict[str, str]) -> str:
    """Lanes as rows, and what was left out and why."""
    from kvq_core.packed.lanes import unquantized_bytes

    reasons = [f"left out: {label}: {reason}" for label, reason in left_out.items()]
    if not measured:
        return "\n".join(reasons)
    whole = unquantized_bytes(measured)
    rows: list[tuple[str, ...]] = [COLUMNS]
    for m in measured:
        rows.append(
            (
                m.label,
                m.path,
                f"{m.batch} x {m.prompt_tokens}",
                f"{m.ms_per_token:.2f}",
                f"{m.cache_bytes / 1e6:.2f}",
                "-" if whole is None else f"{m.cache_bytes / whole:.1%}",
                "-" if m.peak_decode_bytes is None else f"{m.peak_decode_bytes / 1e6:.1f}",
                *(str(m.limits.get(what, "-")) for what in ("context", "batch")),
            )
        )
    note = f"{measured[0].device}, {measured[0].dtype}"
    if measured[0].device == "cpu":
        note += ": the plain-torch reference ran, which dequantizes the cache every step; its times say nothing of GPUs"
    return "\n".join([*columns(rows), "", note, *reasons])


def _request(arguments: argparse.Namespace) -> Any:
    from pydantic import ValidationError

    from kvq_core.packed import MeasureRequest

    try:
        return MeasureRequest(
            tokens=arguments.tokens,
            new_tokens=arguments.new_tokens,
            batch=arguments.batch,
            path=arguments.path,
            limits=tuple(dict.fromkeys(arguments.limit)),
        )
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise SpecError(f"{option} {excerpt(first['input'])} is not allowed: {first['msg']}.") from None
