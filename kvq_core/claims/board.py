"""The board of the papers' claims on a model: what measuring them found, as it is stored and shipped; measures nothing.

The criteria are data (``presets/claims/*.toml``), kvq_core.claims measures them. Boards lie in ``KVQ_HOME/claims``;
those of the default model and of the second one are shipped in ``presets/claims``.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AllowInfNan, ValidationError

from kvq_core.claims.margins import CONFIDENCE, NOISE, interval
from kvq_core.claims.shares import share_words, shown
from kvq_core.errors import SpecError, StoreError, abbreviate
from kvq_core.frozen import Frozen
from kvq_core.machine import files
from kvq_core.settings import settings
from kvq_core.shipped import shipped
from kvq_core.spec import DEFAULT_MODEL

SHIPPED = shipped("claims")
NAME = r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*"
_CRITERION = re.compile(rf"({NAME}) (<=|>=|<|>) (?:(\d+(?:\.\d+)?) \* )?({NAME}|-?\d+(?:\.\d+)?)")
Verdict = Literal["holds", "does not hold here", "cannot be tested here", "not measured"]
Number = Annotated[float, AllowInfNan(False)]


class Criterion(Frozen):
    """One comparison of measured numbers: ``left relation factor * right``, right a number's name or a constant."""

    left: str
    relation: Literal["<", "<=", ">", ">="]
    factor: Number
    right: str | Number

    @classmethod
    def parse(cls, text: str) -> "Criterion":
        """From ``squat.kld < 0.9 * kivi.kld`` or ``share >= 0.5``. Raises SpecError for anything else."""
        found = _CRITERION.fullmatch(text)
        if found is None:
            raise SpecError(f"{text!r} is no criterion; write: name < name, name >= 0.5, or name < 0.9 * name.")
        left, relation, factor, right = found.groups()
        constant = re.fullmatch(r"-?\d+(\.\d+)?", right)
        other = float(right) if constant else right
        return cls(left=left, relation=relation, factor=float(factor or 1), right=other)

    @property
    def names(self) -> tuple[str, ...]:
        """Numbers it compares."""
        return (self.left, self.right) if isinstance(self.right, str) else (self.left,)

    def holds(self, numbers: dict[str, float]) -> bool:
        margin = self.margin(numbers)
        return margin > 0 if self.relation in ("<", ">") else margin >= 0

    def margin(self, numbers: dict[str, float]) -> float:
        """By how much it holds; negative where it does not."""
        left = numbers[self.left]
        right = self.factor * (numbers[self.right] if isinstance(self.right, str) else self.right)
        return right - left if self.relation in ("<", "<=") else left - right


class Spread(Frozen):
    """A number over the texts."""

    mean: Number
    min: Number
    max: Number


class TextResult(Frozen):
    """What one text gave; ``holds``: every criterion."""

    text: str
    holds: bool
    numbers: dict[str, Number]


class ClaimResult(Frozen):
    """One claim, its criterion as it was written down, and what came out."""

    id: str
    paper: str
    arxiv: str
    sentence: str
    where: str
    quote: str = ""  # the paper's own words; ``sentence`` is what the criterion tests
    quoted_from: str = ""
    less: str = ""  # where the criterion tests less than the quote says
    setting: str
    note: str
    criterion: tuple[str, ...]
    verdict: Verdict
    reason: str  # why it cannot be tested here; empty otherwise
    answers: int = 0  # behind each number, a share of right ones, of all cases together; 0: numbers are no such shares
    numbers: dict[str, Spread]
    texts: tuple[TextResult, ...]


class TextInfo(Frozen):
    """A text the claims were measured on."""

    name: str
    source: str
    tokens: int


class Go(Frozen):
    """Claims, by their ids, that were measured after the rest of their board."""

    claims: tuple[str, ...]
    created: str
    seconds: Number
    environment: dict[str, str | int]


class Board(Frozen):
    """All claims measured on a model, and under what circumstances."""

    format: Literal[1] = 1
    model: str
    model_title: str
    weights_hash: str
    created: str
    seconds: Number
    environment: dict[str, str | int]  # versions, device, dtype, threads
    rule: str
    prompt_tokens: int
    later_tokens: int
    texts: tuple[TextInfo, ...]
    codebooks: tuple[str, ...]
    trained_on_demand: tuple[str, ...] | None = None  # those that do not ship with the project; None: not said
    claims: tuple[ClaimResult, ...]
    goes: tuple[Go, ...] = ()  # later ones; what else this says is of the first
    mends: str | None = None  # the model whose file it was mended from; its column is of claims that flip alone


def margin(claim: ClaimResult, criterion: Criterion) -> tuple[float, float, float]:
    """A criterion's mean margin over the texts, and the ends of its interval."""
    return interval([criterion.margin(text.numbers) for text in claim.texts])


def in_doubt(claim: ClaimResult, criterion: Criterion) -> bool:
    """Whether 0 lies within the interval of a margin that is not the same in all texts."""
    _, low, high = margin(claim, criterion)
    return low < high and low <= 0 <= high


def within_noise(claim: ClaimResult) -> bool:
    """Whether other texts may well have turned the verdict: a criterion of a claim that holds is in doubt, or every
    criterion that fails is, of one that does not."""
    if not claim.texts or not claim.numbers:
        return False
    criteria = [Criterion.parse(text) for text in claim.criterion]
    if claim.verdict == "holds":
        return any(in_doubt(claim, criterion) for criterion in criteria)
    return all(in_doubt(claim, criterion) or margin(claim, criterion)[0] >= 0 for criterion in criteria)


def measurement_lines(claim: ClaimResult) -> list[str]:
    """A line a criterion with the numbers it compares, mean and range over the texts, then the numbers beside it."""
    if not claim.numbers:
        return [claim.reason]
    compared = [Criterion.parse(text) for text in claim.criterion]
    used = {name for criterion in compared for name in criterion.names}
    beside = [name for name in shown(claim.numbers) if name not in used]
    lines = [_compared(claim, criterion) + _doubt(claim, criterion) for criterion in compared]
    return lines + ([", ".join(_named(claim, name) for name in beside)] if beside else [])


def main_figure(claim: ClaimResult, beside: Sequence[ClaimResult] = ()) -> str:
    """The means of one criterion: the first that they fail, here or on the models ``beside``, else the first; the
    reason where nothing was measured."""
    if not claim.numbers:
        return claim.reason
    found = [{name: spread.mean for name, spread in c.numbers.items()} for c in (claim, *beside) if c.numbers]
    criteria = [Criterion.parse(text) for text in claim.criterion]
    failed = (c for c in criteria if not all(c.holds(means) for means in found))
    return _compared(claim, next(failed, criteria[0]), _mean)


def texts_share(claim: ClaimResult) -> str:
    """``4 of 5``: texts, or cases, in which every criterion holds."""
    return f"{sum(text.holds for text in claim.texts)} of {len(claim.texts)}" if claim.texts else ""


def _doubt(claim: ClaimResult, criterion: Criterion) -> str:
    if not claim.texts or not in_doubt(claim, criterion):
        return ""
    mean, low, high = (_short(value) for value in margin(claim, criterion))
    return f": by {mean}, {100 * CONFIDENCE:g} % interval {low} to {high}"


def _mean(claim: ClaimResult, name: str, ends: bool = False) -> str:
    mean = claim.numbers[name].mean
    value = share_words(mean, claim.answers, ends) if claim.answers else _short(mean)
    return f"{name.replace('.', ' ').replace('_', ' ')} {value}"


def _named(claim: ClaimResult, name: str) -> str:
    low, high = (_short(value) for value in (claim.numbers[name].min, claim.numbers[name].max))
    return _mean(claim, name, True) + ("" if claim.answers or low == high else f" ({low} to {high})")


def _compared(claim: ClaimResult, criterion: Criterion, figure: Callable[[ClaimResult, str], str] = _named) -> str:
    right, factor = criterion.right, "" if criterion.factor == 1 else f"{criterion.factor:g} × "
    other = figure(claim, right) if isinstance(right, str) else f"{right:g}"
    return f"{figure(claim, criterion.left)} {criterion.relation} {factor}{other}"


def _short(value: float) -> str:
    """Three significant digits without an exponent where that is readable."""
    text = f"{value:.3g}"
    return f"{value:.0f}" if "e" in text and 1e3 <= abs(value) < 1e7 else text


def circumstances(*boards: Board) -> str:
    """What was measured, when and on what, a sentence a board, and the rule they share."""
    rules = dict.fromkeys(board.rule for board in boards)
    return " ".join([*map(_measured, boards), *rules, NOISE])


def _measured(board: Board) -> str:
    env = board.environment
    machine = ", ".join(f"{name} {env[name]}" for name in ("torch", "device", "dtype", "threads") if name in env)
    return (
        f"{board.model_title}, measured on {board.created[:10]}: {len(board.texts)} texts, {board.prompt_tokens} "
        f"prompt tokens each and {board.later_tokens} later ones; {machine}{_learned(board)}{_later(board)}."
    )


def _later(board: Board) -> str:
    """How many claims came later, and when; nothing of a board measured in one go."""
    return "".join(f"; {len(go.claims)} of its claims on {go.created[:10]}" for go in board.goes)


def _learned(board: Board) -> str:
    """Whose codebooks CommVQ had; nothing of boards that do not say."""
    if board.trained_on_demand is None:
        return ""
    if not board.codebooks:
        return "; no codebooks for CommVQ"
    own = len(board.trained_on_demand)
    return f"; CommVQ's codebooks {'shipped' if not own else f'trained on demand: {own} of {len(board.codebooks)}'}"


def board_file(model: str, paper: str | None = None) -> Path:
    """Where a model's board is stored; one paper's claims by themselves lie beside the complete board."""
    return settings().home / "claims" / f"{_slug(model)}{'' if paper is None else '-' + _slug(paper)}.json"


def save_board(board: Board, path: Path) -> None:
    """Raises StoreError where the place cannot be written."""
    try:
        files.write(path, board_json(board).encode())
    except OSError as error:
        raise StoreError(f"The board cannot be written to {path}: {error.strerror}.") from None


def board_json(board: Board) -> str:
    return board.model_dump_json(indent=1) + "\n"


def read_board(path: Path) -> Board:
    """Raises StoreError for a file that is missing or not a board of this version."""
    try:
        return Board.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(f"The board {path} cannot be read: {error.strerror}.") from None
    except (ValidationError, ValueError) as error:
        kind = type(error).__name__
        raise StoreError(f"{path.name} is not a board of this version ({kind}); measure it again.") from None


def stored_board(model: str) -> Board:
    """The complete board of a model: measured here, else the shipped one. Raises StoreError where there is none."""
    shipped = SHIPPED / f"board-{_slug(model)}.json"
    for path in (board_file(model), shipped):
        if path.is_file():
            return read_board(path)
    id = abbreviate(model, 200)
    raise StoreError(f"No board of {id} is stored. Measure it: python -m kvq_core claims --model {id}")


def shipped_boards() -> list[Board]:
    """The boards that ship with the project: the default model's, the second one's, and that of its mended file. Raises
    StoreError for a file that is none."""
    boards = [read_board(path) for path in sorted(SHIPPED.glob("board-*.json"))]
    return sorted(boards, key=lambda board: (board.mends is not None, board.model != DEFAULT_MODEL))


def stored_boards() -> list[Board]:
    """``stored_board`` of every model whose board ships, in their order."""
    return [stored_board(board.model).model_copy(update={"mends": board.mends}) for board in shipped_boards()]


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.").lower()[-80:]
