"""``python -m kvq_core claims``: measure the papers' claims on a model, or print what was measured."""

import argparse
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from kvq_core.cli.bar import Bar
from kvq_core.errors import SpecError, StoreError

if TYPE_CHECKING:
    from kvq_core.claims.board import Board
    from kvq_core.claims.latency import DeviceBoard

EXAMPLES = (
    "python -m kvq_core claims\n"
    "  python -m kvq_core claims --paper squat --model Qwen/Qwen3-0.6B\n"
    "  python -m kvq_core claims --missing --paper svdq --model gguf:1d9614638d18024d\n"
    "  python -m kvq_core claims --stored\n"
    "  python -m kvq_core claims --stored --json --model smollm2-135m-instruct-q4_1"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--paper", metavar="NAME", help="the claims of one paper: squat, svdq, commvq, innerq or qaq")
    parser.add_argument("--model", metavar="ID", help="model id or path; the bundled model without it")
    parser.add_argument("--revision", metavar="REV", help="Hub revision of the model")
    parser.add_argument(
        "--stored", action="store_true", help="print the stored or shipped board of --model, or those of both models"
    )
    parser.add_argument(
        "--missing", action="store_true", help="measure what the stored board of --model lacks, of --paper or all"
    )
    parser.add_argument("--markdown", action="store_true", help="as --stored, but as a Markdown table")


def claims(arguments: argparse.Namespace) -> None:
    """Measure and store, or only read, and print."""
    from kvq_core.claims.board import board_file, save_board
    from kvq_core.claims.tables import boards_json, markdown_table, plain_latency, plain_table
    from kvq_core.spec import DEFAULT_MODEL

    if arguments.markdown and arguments.json:
        raise SpecError("--markdown and --json are two formats; give one of them.")
    unkept = None
    timed: list[DeviceBoard] = []
    if arguments.stored or arguments.markdown:
        boards = _stored(arguments.model, arguments.paper)
        timed = _timed(arguments.paper) if arguments.model is None else []
    else:
        model = arguments.model or DEFAULT_MODEL
        boards = [_measured(model, arguments.revision, arguments.paper, arguments.missing)]
        try:
            whole = arguments.missing or arguments.paper is None
            save_board(boards[0], board_file(boards[0].model, None if whole else arguments.paper))
        except StoreError as error:  # what was measured is printed all the same
            unkept = error
        boards = _of(boards, arguments.paper)
    if arguments.json:
        print(boards_json(boards, timed), end="")
    else:
        print(markdown_table(boards) if arguments.markdown else plain_table(boards))
        if timed and not arguments.markdown:
            print("\n" + plain_latency(timed))
    if unkept:
        raise unkept


def _stored(model: str | None, name: str | None) -> "list[Board]":
    """The board of one model, or those of all models that have one side by side; of one paper where it is named."""
    from kvq_core.claims.board import stored_board, stored_boards

    if model is None:
        boards = stored_boards()
    else:
        from kvq_core.models.source import known_as

        boards = [stored_board(known_as(model))]
    return _of(boards, name)


def _of(boards: "list[Board]", name: str | None) -> "list[Board]":
    """Boards with the claims of one paper alone, where it is named."""
    from kvq_core.claims import paper

    if name is None:
        return boards
    title = paper(name).title
    return [b.model_copy(update={"claims": tuple(c for c in b.claims if c.paper == title)}) for b in boards]


def _timed(name: str | None) -> "list[DeviceBoard]":
    """The claims about time, of one paper alone where it is named."""
    from kvq_core.claims import paper
    from kvq_core.claims.latency import stored_latency

    title = None if name is None else paper(name).title
    boards = stored_latency().boards
    own = [tuple(claim for claim in board.claims if title in (None, claim.paper)) for board in boards]
    return [b.model_copy(update={"claims": claims}) for b, claims in zip(boards, own, strict=True) if claims]


def _measured(model: str, revision: str | None, name: str | None, missing: bool) -> "Board":
    from kvq_core.claims import measure_board, measure_missing, paper, papers, setting
    from kvq_core.claims.board import board_file, save_board, stored_board

    chosen = [paper(name)] if name is not None else list(papers().values())
    with redirect_stdout(sys.stderr), Bar() as bar:
        loaded = bar.load(model, revision)
        if missing:
            known = stored_board(loaded.id)
            return measure_missing(loaded, known, chosen, setting(), bar, lambda b: save_board(b, board_file(b.model)))
        return measure_board(loaded, chosen, setting(), bar)
