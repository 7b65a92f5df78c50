"""The part of docs/claims.md about the third model; ``readme.py`` writes it from what ``third_model.py`` measured."""

from typing import Any

from scipy.stats import spearmanr

from benchmarks.measured import HERE, figures, table
from kvq_core.claims import papers
from kvq_core.claims.board import ClaimResult, main_figure, read_board, shipped_boards, texts_share, within_noise
from kvq_core.claims.side_by_side import JUDGED, ClaimRow, claim_rows, of_models, short_title

NAME = "Qwen2.5-Coder-1.5B"
APART = ("K q8_0 V q4_0", "K q4_0 V q8_0")  # values alone at 4 bits, keys alone


def third_part() -> str:
    found = figures("third_model")
    if found is None:
        return f"Not measured yet: `python -m benchmarks.third_model FILE`, with a file of {NAME}-Instruct."
    grid = _grid(found["grid"]["models"]) if "grid" in found else "llama.cpp's K x V grid is not measured on it yet."
    return "\n\n".join((_claims(), _inspection(found), grid))


def _claims() -> str:
    """Of each paper a claim, by the same criterion as on the boards."""
    boards = of_models(shipped_boards())
    third = read_board(HERE / "third_board.json")
    rows = [row for row in claim_rows([*boards, third]) if row.results[-1] is not None]
    head = " | ".join([*(short_title(board.model_title) for board in boards), NAME])
    judged = [row for row in rows if {_verdict(row, -2), _verdict(row, -1)} <= set(JUDGED)]
    flips = [row.claim.sentence for row in judged if _verdict(row, -2) != _verdict(row, -1)]
    told = f"From .5B to 1.5B {len(flips)} of {len(judged)} verdicts flip" + (f": {' '.join(flips)}" if flips else ".")
    lines = [(row.claim.paper, row.claim.sentence, *(_cell(each) for each in row.results)) for row in rows]
    left = sorted({*papers()} - {row.claim.paper.lower() for row in rows})
    lacks = f" Of {', '.join(papers()[name].title for name in left)} no claim is measured on it yet." if left else ""
    return f"{table(f'Paper | Claim | {head}', *lines)}\n\n{told}{lacks}"


def _verdict(row: ClaimRow, at: int) -> str:
    found = row.results[at]
    return found.verdict if found else ""


def _cell(found: ClaimResult | None) -> str:
    if found is None:
        return "not measured"
    doubt = ", *within noise*" if found.texts and within_noise(found) else ""
    share = f", in {texts_share(found)}" if found.texts else ""
    return f"{found.verdict}{doubt}{share}: {main_figure(found)}"


def _inspection(found: dict[str, Any]) -> str:
    own = found["inspection"]
    layers = ", ".join(map(str, own["at_risk"])) or "none"
    return f"Inspection names these of its {own['layers']} layers as at risk: {layers}."


def _grid(models: dict[str, list[dict[str, Any]]]) -> str:
    """llama.cpp's K x V by mean KLD, and what the smaller model says of the same lanes."""
    (small, smaller), (large, own) = models.items()
    by = {name: {line["label"]: line for line in lines} for name, lines in ((small, smaller), (large, own))}
    words = {label: tuple(label.removeprefix("K ").split(" V ")) for label in by[large]}
    names = list(dict.fromkeys(word for pair in words.values() for word in pair))
    kld = {words[label]: line["kld_mean"] for label, line in by[large].items()}
    rows = [(f"K {key}", *(_number(kld.get((key, value))) for value in names)) for key in names]
    same = [(by[small][label]["kld_mean"], by[large][label]["kld_mean"]) for label in words]
    alike = spearmanr(*zip(*same, strict=True)).statistic
    prompts = own[0]["prompts"]
    apart = "; ".join(
        f"{short_title(name)} {_number(by[name][APART[0]]['kld_mean'])} and {_number(by[name][APART[1]]['kld_mean'])}"
        for name in (small, large)
    )
    return (
        f"Mean KLD in nats of llama.cpp's K x V there, {prompts} prompts of the reference table:\n\n"
        + table(" | ".join(["Keys", *(f"V {name}" for name in names)]), *rows)
        + f"\n\nRanks of these {len(words)} lanes agree with those of {short_title(small)} by {alike:.2f} (Spearman). "
        f"4 bits in values alone cost, and 4 bits in keys alone: {apart}."
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
