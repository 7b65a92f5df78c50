"""``python -m kvq_core advise``: which lane to deploy, how sure that is, and what it rests on."""

import argparse
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from kvq_core.cli.bar import Bar
from kvq_core.cli.fit import BATCHED
from kvq_core.cli.output import as_json, columns
from kvq_core.cli.study import PAGE, WORKERS, count
from kvq_core.errors import SpecError, StoreError

if TYPE_CHECKING:
    from kvq_core.recommend.decision import Decision

EXAMPLES = (
    "python -m kvq_core advise --study 0123456789abcdef --memory 24GB --context 32768 --batch 8 --engine vllm\n"
    "  python -m kvq_core advise smollm2-135m-instruct-q4_1 --prompts prompts.jsonl --engine llama.cpp --json\n"
    "  python -m kvq_core advise --study 0123456789abcdef --bits 5 --tolerance marginal --out advice.md"
)
KINDS = (".md", ".html")
ASKED = ("memory", "cache", "bits", "context", "batch", "tolerance", "engine", "batched_tokens")


def add_arguments(parser: argparse.ArgumentParser, quiet: Callable[[], None]) -> None:
    """What the command ``advise`` takes; ``quiet`` silences libraries."""
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="model id, folder, or GGUF file; of a study with several, which"
    )
    parser.add_argument("--study", metavar="ID", help="advise from this study, which was run before")
    parser.add_argument("--prompts", metavar="FILE", type=Path, help="run what the engine ships on these prompts first")
    parser.add_argument("--memory", metavar="SIZE", help="memory of weights and cache together, such as 24GB")
    parser.add_argument("--cache", metavar="SIZE", help="memory of the cache alone, in its place")
    parser.add_argument("--bits", type=float, help="bits an element of keys and values, in its place")
    parser.add_argument("--context", metavar="TOKENS", type=int, default=8192, help="tokens of a sequence (8,192)")
    parser.add_argument("--batch", metavar="N", type=int, default=1, help="sequences at once (1)")
    parser.add_argument(
        "--tolerance", default="close", help="close, marginal, a mean KLD in nats, or task:SHARE of tasks lost (close)"
    )
    parser.add_argument("--engine", help="the engine that flags are for, such as vllm or llama.cpp")
    parser.add_argument("--batched-tokens", metavar="TOKENS", type=int, help=BATCHED)
    parser.add_argument(
        "--weights",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="weights to choose from under the memory; may be given again",
    )
    parser.add_argument("--workers", metavar="N", type=count, help=WORKERS)
    parser.add_argument("--out", metavar="FILE", type=Path, help="also write the report, as .md or .html")
    parser.add_argument("--page", metavar="URL", default=PAGE, help=f"where its links open runs; default {PAGE}")
    parser.set_defaults(quiet=quiet)


def advise_command(arguments: argparse.Namespace) -> None:
    """Advise from a study, or run one first; what was computed is there for the next time."""
    arguments.quiet()
    if arguments.out is not None and arguments.out.suffix not in KINDS:
        raise SpecError(f"--out {arguments.out.name} is not allowed; give a name that ends in {' or '.join(KINDS)}.")
    with redirect_stdout(sys.stderr), Bar(timed=True) as progress:
        progress.went_on = lambda: "Interrupted; what is done is kept, and the same command goes on from there."
        found, id = _found(arguments, progress)
    if arguments.out is not None:
        _write(found, arguments.out, arguments.page, id)
    told = {**found.advice.model_dump(mode="json"), "decision": id}
    print(as_json(told) if arguments.json else _described(found, id, arguments.page))


def _found(arguments: argparse.Namespace, progress: Bar) -> "tuple[Decision, str | None]":
    """The decision, and its id in the store, None where the store does not take it."""
    from kvq_core.cli.layers import study_prompts
    from kvq_core.recommend.decision import DecisionRequest, keep_decision
    from kvq_core.recommend.recommend import decide
    from kvq_core.record.store import open_store

    asked = DecisionRequest.of(**{name: getattr(arguments, name) for name in ASKED})
    given = {name: getattr(arguments, name) for name in ("study", "model", "weights", "workers")}
    prompts = None if arguments.prompts is None else study_prompts(arguments.prompts)
    store = open_store()
    found = decide(asked, **given, prompts=prompts, store=store, progress=progress)
    try:
        return found, keep_decision(found, store)
    except StoreError:  # costs the link, not the answer
        return found, None


def _write(found: "Decision", file: Path, page: str, id: str | None) -> None:
    from kvq_core.machine import files
    from kvq_core.recommend.html import as_html
    from kvq_core.recommend.markdown import as_markdown

    make = as_markdown if file.suffix == ".md" else as_html
    files.write(file, make(found.advice, found.grounds, page, id).encode())


def _described(decision: "Decision", id: str | None, page: str) -> str:
    from kvq_core.recommend.markdown import HEADER, address, cells, sections

    found = decision.advice
    parts = [[found.answer], [found.flags or found.unflagged or ""], [*found.reasons, found.separates or ""]]
    parts.append([f"warning: {each}" for each in found.warnings])
    parts += [[*found.helps], columns([HEADER, *map(cells, found.front)])]
    parts += [[title, *columns([head, *rows])] for title, head, rows in sections(decision.grounds)]
    parts.append([f"worst: {each.prompt}, {each.kld:.3g} nats: {address(page, each.link)}" for each in found.worst])
    parts.append([f"not tested: {each}" for each in found.untested])
    parts.append([f"All of it on the page: {address(page, f'?decide={id}')}" if id else ""])
    return "\n\n".join("\n".join(filter(None, lines)) for lines in parts if any(lines))
