"""``python -m kvq_core verify``: whether a server's cache is the one that was asked for."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvq_core.cli.bar import Bar
from kvq_core.cli.output import as_json
from kvq_core.errors import PATH, SpecError, StoreError, abbreviate, excerpt
from kvq_core.machine.progress import Progress

if TYPE_CHECKING:
    from kvq_core.servers.verification import Report

SUMMARY = "Whether a server's cache is the one that was asked for, and as good as its format should be."
EXAMPLES = (
    "python -m kvq_core verify http://127.0.0.1:8081 --against http://127.0.0.1:8080 --prompts p.jsonl --format q8_0\n"
    "  python -m kvq_core verify http://127.0.0.1:8081 --against http://127.0.0.1:8080 --prompts p.jsonl \\\n"
    "    --format q8_0/q4_0 --tolerance 0.05 --out verified.xml\n"
    "  python -m kvq_core verify 0123456789abcdef --out verified.md"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="URL|ID", help="the server's address, or the id of a kept verification")
    parser.add_argument("--against", metavar="URL", help="a server of the same model with a full-precision cache")
    parser.add_argument("--model", metavar="M", help="the model, run here: the baseline, or to predict with")
    parser.add_argument("--prompts", metavar="FILE", type=Path, help="prompts as a study reads them")
    parser.add_argument("--format", metavar="K/V", help="the cache types that were asked for, such as q8_0/q4_0")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens of every answer (64)")
    parser.add_argument("--top", type=int, default=20, metavar="K", help="log-probabilities of every token (20)")
    parser.add_argument("--tolerance", type=float, metavar="T", help="mean KLD in nats that is allowed at most")
    parser.add_argument("--out", metavar="FILE", type=Path, help="also write it as Markdown (.md) or JUnit (.xml)")
    parser.set_defaults(at_once=lambda arguments: True)


def verify(arguments: argparse.Namespace) -> int:
    """Ask, judge, keep and print; 0 as expected, 1 if not, 3 where it could not be measured."""
    from kvq_core.record.beside import is_id
    from kvq_core.record.store import open_store
    from kvq_core.servers.http import ServerError
    from kvq_core.servers.verification import keep, kept, status
    from kvq_core.servers.verified import EXPORTS, text, write

    if arguments.out is not None:
        _check_out(arguments.out, tuple(EXPORTS))
    store = open_store()
    if is_id(arguments.server):
        report = kept(store, arguments.server)
    else:
        try:
            report = _measured(arguments)
        except ServerError as error:
            print(f"error: {error}", file=sys.stderr)
            return 3
        try:
            keep(store, report)
        except StoreError as error:  # what was measured is told all the same
            print(f"warning: {error}", file=sys.stderr)
    if arguments.out is not None:
        try:
            write(report, arguments.out)
        except OSError as error:
            raise SpecError(
                f"Cannot write {abbreviate(str(arguments.out), PATH)}: {error.strerror or error}."
            ) from None
    printed = text(report)
    lines = ("".join(c if c.isprintable() else "?" for c in line) for line in printed.splitlines())
    print(as_json(report) if arguments.json else "\n".join(lines))
    return status(report)


def _check_out(out: Path, exports: tuple[str, ...]) -> None:
    """Raises SpecError before anything is asked."""
    if out.is_dir() or out.suffix not in exports:
        raise SpecError(f"--out {excerpt(str(out))} is not allowed; give a file that ends in .md or .xml.")


def _measured(arguments: argparse.Namespace) -> "Report":
    from kvq_core.servers.verification import ToVerify, verify
    from kvq_core.studies.sources import PromptSource

    if arguments.prompts is None:
        raise SpecError("Give --prompts, and --against URL2 or --model M to measure the server against.")
    given = {name: getattr(arguments, name) for name in ("server", "against", "tokens", "top", "model", "tolerance")}
    request = ToVerify(**given, form=arguments.format, prompts=PromptSource(file=str(arguments.prompts)).read()[0])
    with Bar(timed=True) as bar:

        def tell(now: Progress) -> None:
            if now.total:
                bar(now)
            else:
                print(now.doing, file=sys.stderr, flush=True)

        return verify(request, tell)
