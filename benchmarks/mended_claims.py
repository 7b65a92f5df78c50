"""The claims that flip between the two models, judged on the second model's mended file: a third column.

``python -m benchmarks.mended_claims FILE`` with a file that ``python -m kvq_core mend`` wrote. What is measured already
stays, a claim at a time; nothing is trained for it.
"""

import argparse
import sys
from pathlib import Path

from kvq_core.claims import measure_board, measure_missing, papers, setting
from kvq_core.claims.board import SHIPPED, Board, board_file, read_board, save_board, shipped_boards
from kvq_core.claims.side_by_side import claim_rows, short_title
from kvq_core.machine.progress import Progress
from kvq_core.models import load
from kvq_core.models.gguf.published import SECOND_MODEL, TITLE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    flips = {row.claim.id for row in claim_rows(shipped_boards()) if row.flips}
    own = [(paper, tuple(c for c in paper.claims if c.id in flips)) for paper in papers().values()]
    chosen = [paper.model_copy(update={"claims": claims}) for paper, claims in own if claims]
    model = load(str(given.file))
    place = SHIPPED / f"board-{board_file(model.id).name}"

    def keep(board: Board) -> None:
        update = {"mends": SECOND_MODEL, "model_title": f"{short_title(TITLE)}, mended"}
        save_board(board.model_copy(update=update), place)

    def tell(at: Progress) -> None:
        print(f"{at.done} of {at.total}  {at.doing}", file=sys.stderr, flush=True)

    if not place.is_file():
        first = chosen[0].model_copy(update={"claims": chosen[0].claims[:1]})
        keep(measure_board(model, [first], setting(), tell))
    keep(measure_missing(model, read_board(place), chosen, setting(), tell, keep))


if __name__ == "__main__":
    main()
