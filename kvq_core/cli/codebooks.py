"""``python -m kvq_core codebooks``: list, look into, train, export and delete what was learned from a model."""

import argparse
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvq_core.cli.bar import Bar
from kvq_core.cli.output import as_json, columns
from kvq_core.errors import KvqError, excerpt

if TYPE_CHECKING:
    from kvq_core.codebooks.files import Codebook

EXAMPLES = (
    "python -m kvq_core codebooks list\n"
    "  python -m kvq_core codebooks train --model Qwen/Qwen3-0.6B --bits 1\n"
    "  python -m kvq_core codebooks train --bits 2 --text essays.txt --name essays\n"
    "  python -m kvq_core codebooks train --only rotations --target qqt\n"
    "  python -m kvq_core codebooks train --only ranges --outlier-fraction 0.01"
)
Add = Callable[..., argparse.ArgumentParser]


def add_commands(parser: argparse.ArgumentParser, quiet: Callable[[], None]) -> None:
    """Put the commands under ``codebooks``; ``quiet`` silences libraries before they are imported."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, summary: str, command: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        made.add_argument("--json", action="store_true", help="print JSON")
        made.set_defaults(command=command, quiet=quiet)
        return made

    add("list", "List the codebooks: the user's and those shipped with the project.", _list)
    show = add("show", "Print what a codebook says about itself.", _show)
    delete = add("delete", "Delete one of the user's codebooks.", _delete)
    export = add("export", "Write calibrated rotations as files that OSCAR's engine reads.", _export)
    export.add_argument("--to", type=Path, default=Path(), metavar="FOLDER", help="where they are written (here)")
    for made in (show, delete, export):
        made.add_argument("codebook", metavar="NAME", help="as the command list prints it")
    _add_training(add("train", "Train codebooks of a model; interrupted, the same command goes on.", _train))


def _add_training(train: argparse.ArgumentParser) -> None:
    text = "hub:owner/name[:column]"
    train.add_argument("--model", metavar="ID", help="model id or path; the bundled model without it")
    train.add_argument("--revision", metavar="REV", help="Hub revision of the model")
    train.add_argument("--bits", type=int, choices=(1, 2), default=1, help="bits an element (1)")
    kinds = ("keys", "values", "rotations", "ranges")
    calibrated = "rotations for oscar or ranges for kvquant"
    train.add_argument("--only", choices=kinds, help=f"train one of the two, or calibrate {calibrated}")
    targets = ("qqt", "ktk")
    train.add_argument("--target", choices=targets, default="qqt", help="what rotations are fitted to (qqt)")
    left_out = "share of the elements that ranges leave out (0.01)"
    train.add_argument("--outlier-fraction", type=float, default=0.01, metavar="F", help=left_out)
    train.add_argument("--levels", type=int, choices=(4, 8, 16, 32, 64), default=16, help="levels of a key stage (16)")
    train.add_argument("--pairs", type=int, metavar="N", help="channel pairs in a group of keys (half a head)")
    train.add_argument("--stages", type=int, metavar="N", help="key stages (as many as the bits allow)")
    train.add_argument("--text", metavar="FILE", help=f"UTF-8 text file or {text} (the standard library's help topics)")
    train.add_argument("--name", default="default", help="name of the set; lanes ask for it with codebooks = NAME")
    train.add_argument("--train-tokens", type=int, default=12288, metavar="N", help="tokens to train on (12288)")
    train.add_argument("--held-out-tokens", type=int, default=2048, metavar="N", help="tokens to measure on (2048)")
    train.add_argument("--value-steps", type=int, default=600, metavar="N", help="steps for each bit of values (600)")
    train.add_argument("--seed", type=int, default=0, metavar="N", help="seed of sampling and starts (0)")


def _list(arguments: argparse.Namespace) -> None:
    from kvq_core.codebooks.files import codebooks

    found = codebooks()
    if arguments.json:
        print(as_json([_described(book) for book in found]))
        return
    rows = [("name", "model", "bits", "held-out error", "trained on", "where")]
    for book in found:
        i = book.info
        error = f"{i.held_out_error[-1]:.4f}" if i.held_out_error else "?"
        where = "shipped" if book.shipped else "yours"
        rows.append((i.file_name, i.model, f"{i.bits:g}", error, f"{i.train_tokens} tokens of {i.source}", where))
    if not found:
        print("No codebooks yet. Train some: python -m kvq_core codebooks train --bits 1")
        return
    print("\n".join(columns(rows)))


def _show(arguments: argparse.Namespace) -> None:
    from kvq_core.codebooks.files import get_codebook

    described = _described(get_codebook(arguments.codebook))
    if arguments.json:
        print(as_json(described))
        return
    for name, value in described.items():
        print(f"{name:<16} {value}")


def _delete(arguments: argparse.Namespace) -> None:
    from kvq_core.codebooks.files import delete_codebook

    deleted = delete_codebook(arguments.codebook)
    print(as_json({"deleted": str(deleted.path)}) if arguments.json else f"Deleted {deleted.path}")


def _export(arguments: argparse.Namespace) -> None:
    from kvq_core.codebooks.files import get_codebook
    from kvq_core.training.rotations import export

    written = export(get_codebook(arguments.codebook), arguments.to)
    print(as_json({"written": list(map(str, written))}) if arguments.json else "\n".join(map(str, written)))


def _train(arguments: argparse.Namespace) -> None:
    arguments.quiet()
    from kvq_core.spec import DEFAULT_MODEL
    from kvq_core.training.texts import read_texts
    from kvq_core.training.train import train

    request = _request(arguments)
    texts = read_texts(request.text)  # fails at once, where loading a model takes a while
    with redirect_stdout(sys.stderr), Bar(timed=True) as bar:
        model = bar.load(arguments.model or DEFAULT_MODEL, arguments.revision)
        try:
            books = train(model, request, bar, texts)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("Interrupted; the same command goes on where this one stopped.") from None
    if arguments.json:
        print(as_json([_described(book) for book in books]))
        return
    for book in books:
        info = book.info
        print(f"{info.file_name}: held-out error {info.held_out_error[-1]:.4f}, {info.seconds:.0f} s, {book.path}")


def _request(arguments: argparse.Namespace) -> Any:
    import re

    from kvq_core.codebooks.files import NAME
    from kvq_core.training.train import Request

    if not re.fullmatch(NAME, arguments.name):
        raise KvqError(f"--name {excerpt(arguments.name)} is not allowed; use letters, digits, -, _ and ., at most 60.")
    for name in ("stages", "pairs", "value_steps"):
        given = getattr(arguments, name)
        if given is not None and given < 1:
            raise KvqError(f"--{name.replace('_', '-')} {excerpt(given)} is not allowed; give at least 1.")
    kinds: Any = (arguments.only,) if arguments.only else ("keys", "values")
    given = {
        name: getattr(arguments, name)
        for name in (
            "bits",
            "levels",
            "pairs",
            "stages",
            "target",
            "outlier_fraction",
            "text",
            "name",
            "train_tokens",
            "held_out_tokens",
            "seed",
        )
    }
    return Request(kinds=kinds, value_steps=arguments.value_steps, **given)


def _described(book: "Codebook") -> dict[str, Any]:
    size = book.path.stat().st_size
    return {"file": book.info.file_name, "shipped": book.shipped, "bytes": size, "path": str(book.path)} | (
        book.info.model_dump(mode="json")
    )
