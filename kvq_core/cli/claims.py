"""``python -m kvq_core claims``: measure the papers' claims on a model, or print what was measured."""

import argparse
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from kvq_core.cli.bar import Bar
from kvq_core.errors import SpecError, StoreError

if TYPE_CHECKING:
    from kvq_core.claims.board import Board

EXAMPLES = (
    "python -m kvq_core claims\n"
    "  python -m kvq_core claims --paper squat --model Qwen/Qwen3-0.6B\n"
    "  python -m kvq_core claims --stored --json"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--paper", metavar="NAME", help="the claims of one paper: squat, svdq, commvq, innerq or qaq")
    parser.add_argument("--model", metavar="ID", help="model id or path; the bundled model without it")
    parser.add_argument("--revision", metavar="REV", help="Hub revision of the model")
    parser.add_argument(
        "--stored", action="store_true", help="print the stored board, or the shipped one; no measuring"
    )
    parser.add_argument("--markdown", action="store_true", help="print the stored or shipped board as a Markdown table")


def claims(arguments: argparse.Namespace) -> None:
    """Measure and store, or only read, and print."""
    from kvq_core.claims.board import board_file, board_json, markdown_table, plain_table, save_board, stored_board
    from kvq_core.spec import DEFAULT_MODEL

    if arguments.markdown and arguments.json:
        raise SpecError("--markdown and --json are two formats; give one of them.")
    model = arguments.model or DEFAULT_MODEL
    unkept = None
    if arguments.stored or arguments.markdown:
        board = _of_paper(stored_board(model), arguments.paper)
    else:
        board = _measured(model, arguments.revision, arguments.paper)
        try:
            save_board(board, board_file(model, arguments.paper))
        except StoreError as error:  # what was measured is printed all the same
            unkept = error
    if arguments.markdown:
        print(markdown_table(board))
    else:
        print(board_json(board) if arguments.json else plain_table(board), end="" if arguments.json else "\n")
    if unkept:
        raise unkept


def _of_paper(board: "Board", name: str | None) -> "Board":
    from kvq_core.claims import paper

    if name is None:
        return board
    title = paper(name).title
    return board.model_copy(update={"claims": tuple(claim for claim in board.claims if claim.paper == title)})


def _measured(model: str, revision: str | None, name: str | None) -> "Board":
    from kvq_core.claims import measure_board, paper, papers, setting

    chosen = [paper(name)] if name is not None else list(papers().values())
    from kvq_core.models import load, prepare

    with redirect_stdout(sys.stderr), Bar() as bar:
        bar("Loading the model", 0, 1)
        for done, total in prepare(model, revision):
            bar("Converting the model", done, total)
        return measure_board(load(model, revision), chosen, setting(), bar)
