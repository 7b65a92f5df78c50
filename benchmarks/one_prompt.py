"""How often one prompt is right, and three, and six: of the study that ships every way to draw so many of its prompts,
and whether they say of a lane's tier, and of the format to use, what all of them say. From stored rows alone: no model
computes. Written where the page and ``make readme`` read it.

``--table`` counts the reference table instead, where the store has all of it. Its answers are shorter than a verdict
needs, so that one prompt of it names no tier.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kvq_core.analysis.scored import CONFIDENCE
from kvq_core.analysis.verdict import Placed
from kvq_core.analysis.verdict import mean_interval as of_positions
from kvq_core.claims.side_by_side import short_title
from kvq_core.recommend.decision import DecisionRequest, StudyQuestion
from kvq_core.recommend.evidence import Option, best_lane, evidence
from kvq_core.recommend.options import FitPlace
from kvq_core.record.fields import RESULTS_VERSION
from kvq_core.studies.agreement import SHIPPED
from kvq_core.studies.cells import plan
from kvq_core.studies.example import example_spec, packaged_studies
from kvq_core.studies.intervals import FEWEST, MeanInterval, mean_interval
from kvq_core.studies.result import StudyResult
from kvq_core.studies.study import stored_study
from kvq_core.studies.summary import placed, pooled_column
from kvq_core.studies.table import table_spec

SIZES = (1, 3, 6)  # prompts
RESAMPLES = 2000  # of the prompts
ENGINES = (None, "llama.cpp", "vLLM")  # None: the format may be any engine's
TOLERANCES = ("close", "marginal")
Said = dict[str, np.ndarray]  # by what is said: (subsets, cases), whether a subset says it


def subsets(prompts: int, size: int) -> np.ndarray:
    """(subsets, size): every way to draw so many prompts without replacement, by their numbers."""
    return np.array(list(combinations(range(prompts), size)))


def tier_of(rows: pd.DataFrame) -> Placed | None:
    """The tier of one lane by the prompts of these rows. From FEWEST on the interval of KLD is over prompts, as a study
    has it; fewer have none, and it is over their positions, as a run has it. None of too few scored positions."""
    if len(rows) < FEWEST:
        low, high = of_positions(pooled_column(rows, "kld").astype(np.float64).tobytes())
        return placed(rows, low, high)
    found = mean_interval(rows["kld_mean"].to_numpy())
    assert found.low is not None and found.high is not None
    return placed(rows, found.low, found.high)


def tier_said(fewer: Placed | None, study: Placed) -> str:
    """What fewer prompts say of a lane whose tier the study is sure of: it is ``right``; it is one of several that they
    leave ``open``; it is none of theirs, ``wrong``; or they have ``none``."""
    if fewer is None:
        return "none"
    if not fewer.best <= study.best <= fewer.worst:
        return "wrong"
    return "right" if fewer.sure else "open"


def agreement(hits: np.ndarray, drawn: np.ndarray, prompts: int) -> MeanInterval:
    """The share of ``hits`` (subsets, cases) that are true, with its 95 % interval, which resamples the prompts: all
    cases of a prompt are one sample. ``drawn`` (subsets, size): the numbers of the prompts in each, of ``prompts``.

    A subset counts as often as it can be drawn from a resample, which is the product of its prompts' counts there;
    resamples with fewer distinct prompts than ``size`` hold none and are left out.
    """
    own = hits.mean(1)
    rng = np.random.default_rng(0)
    counts = rng.multinomial(prompts, np.full(prompts, 1 / prompts), RESAMPLES)
    weights = counts[:, drawn].prod(2).astype(float)
    weights = weights[weights.any(1)]
    outside = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(weights @ own / weights.sum(1), [outside, 100 - outside])
    return MeanInterval(float(own.mean()), float(low), float(high))


def tiers_said(rows: Any, drawn: np.ndarray) -> Said:
    """Of one model's rows, what subsets of its prompts say of each lane whose tier all of them are sure of."""
    said = []
    for _, lane in rows.groupby("lane", sort=False):
        study = tier_of(lane)
        if study is not None and study.sure:
            said.append([tier_said(tier_of(lane.iloc[each]), study) for each in drawn])
    found = np.array(said).T
    return {word: found == word for word in ("right", "open", "none")}


def formats_said(rows: Any, drawn: np.ndarray, asks: Sequence[tuple[DecisionRequest, Sequence[Option]]]) -> Said:
    """Of one model's rows, whether subsets recommend what all prompts do, for everything that is asked. "None of them"
    is an answer, too."""
    prompts = rows["prompt"].unique()

    def answers(own: np.ndarray) -> list[str | None]:
        some = rows[rows["prompt"].isin(prompts[own])]
        found = {}
        for asked, options in asks:
            if asked.tolerance not in found:  # the engine changes the options alone
                labels = [option.label for option in options]
                found[asked.tolerance] = evidence(some, labels, asked.ask().tolerance)
        return [best_lane(found[asked.tolerance], options) for asked, options in asks]

    study = answers(np.arange(len(prompts)))
    return {"right": np.array([[a == b for a, b in zip(answers(each), study, strict=True)] for each in drawn])}


def asks_of(result: StudyResult, model: str) -> list[tuple[DecisionRequest, list[Option]]]:
    """All that is asked of a model, each with the study's lanes as they would be deployed."""
    found = []
    for engine in ENGINES:
        for tolerance in TOLERANCES:
            question = StudyQuestion(result, model, DecisionRequest.of(engine=engine, tolerance=tolerance))
            place = FitPlace(question.shape, question.own, question.ask, question.model.ref)
            found.append((question.asked, [place.option(lane) for lane in result.plan.spec.comparison.lanes]))
    return found


def counted(result: StudyResult) -> dict[str, Any]:
    """What is kept of a study all of whose cells are stored. Raises SystemExit where some are not."""
    if result.done < len(result.plan.cells):
        raise SystemExit(f"{result.done} of {len(result.plan.cells)} cells of study {result.id} are stored; none told.")
    titles = {cell.title: cell.model for cell in result.plan.cells}
    lanes, prompts = len(result.plan.spec.comparison.lanes), len(result.plan.prompts)
    asks = {title: asks_of(result, model) for title, model in titles.items()}
    lines = [line for size in SIZES for line in _lines(result, size, asks)]
    cases = next(line["cases"] for line in lines if line["what"] == "tier" and line["model"] is None)
    about = {"study": result.id, "results_version": RESULTS_VERSION, "prompts": prompts, "lanes": lanes}
    models = [short_title(title) for title in titles]
    asked = {"engines": [engine or "any" for engine in ENGINES], "tolerances": list(TOLERANCES)}
    return {**about, "models": models, **asked, "unsure": lanes * len(titles) - cases, "lines": lines}


def _lines(result: StudyResult, size: int, asks: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Of every model, and of all together, where ``model`` is None."""
    drawn, prompts = subsets(len(result.plan.prompts), size), len(result.plan.prompts)
    rows = {title: result.table[result.table["model"] == title] for title in asks}
    positions = size * float(result.table["scored"].mean())
    by_what: dict[str, dict[str | None, Said]] = {
        "tier": {short_title(title): tiers_said(own, drawn) for title, own in rows.items()},
        "format": {short_title(title): formats_said(own, drawn, asks[title]) for title, own in rows.items()},
    }
    for what, said in by_what.items():
        together = {word: np.hstack([own[word] for own in said.values()]) for word in next(iter(said.values()))}
        for model, own in {**said, None: together}.items():
            found = agreement(own["right"], drawn, prompts)
            told = {"share": found.value, "low": found.low, "high": found.high}
            told |= {word: float(hits.mean()) for word, hits in own.items() if word != "right"}
            at = {"what": what, "model": model, "prompts": size, "positions": positions}
            yield {**at, "subsets": len(drawn), "cases": own["right"].shape[1], **told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="count the reference table that the store holds")
    parser.add_argument("--out", type=Path, default=SHIPPED)
    arguments = parser.parse_args()
    if arguments.table:
        result = stored_study(plan(table_spec()))
    else:
        result = stored_study(plan(example_spec()), packaged_studies())
    arguments.out.write_text(json.dumps(counted(result), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
