"""A cell of the map of layers: what it says, and the lane as a comparison to open."""

import json
from dataclasses import dataclass

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.recommend.decision import Decision
from kvq_core.recommend.layer_plans import Candidate
from kvq_core.recommend.sensitivity import Score
from kvq_core.spec import ComparisonSpec
from kvq_core.spec.links import encode
from kvq_core.studies.result import StudyResult
from ui.decide.beside import comparison_of
from ui.html.escape import safe
from ui.html.numbers import significant
from ui.study.access import Results


@dataclass
class CellPart:
    """``pick`` is written by js/decide.js: {"cell"}, the number of a score."""

    words: gr.HTML
    pick: gr.Textbox


def create_cell() -> CellPart:
    words = gr.HTML("", elem_id="decide-cell-words")
    pick = gr.Textbox(visible="hidden", elem_id="decide-cell", show_label=False)
    return CellPart(words, pick)


def picked_score(raw: str, decision: Decision) -> Score | None:
    """The score that was chosen; what a browser sends may be anything."""
    try:
        number = int(json.loads(raw)["cell"])
        return decision.grounds.scores[number] if number >= 0 else None
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None


def cell_html(score: Score, decision: Decision, results: Results) -> str:
    """What the layer costs there, beside its rank, and the lane as a link."""
    same = [s for s in decision.grounds.scores if (s.format, s.tensor) == (score.format, score.tensor)]
    rank = 1 + sum(each.kld_mean > score.kld_mean for each in same)
    ends = "" if score.kld_low is None else f" ({significant(score.kld_low)} to {significant(score.kld_high)})"
    return (
        f'<div class="cell-told"><p><b>{safe(score.tensor)} of layer {score.layer} in {safe(score.format)}</b> '
        f"{significant(score.kld_mean)} nats{ends}, rank {rank} of {len(same)} layers</p>"
        f"{_link(score, decision, results)}</div>"
    )


def _link(score: Score, decision: Decision, results: Results) -> str:
    try:
        result = results.get(decision.advice.study)
        asked = encode(spec_of(score, result, decision.advice.model))
    except KvqError as error:
        return f'<p class="muted">It cannot be opened: {safe(error)}</p>'
    return f'<a class="plain-button" href="?c={asked}">Open as a comparison</a>'


def spec_of(score: Score, result: StudyResult, model: str) -> ComparisonSpec:
    """The layer alone, and the format in all layers, on the first prompt that was scored. Raises KvqError."""
    candidate = Candidate.parse(score.format)
    one = {**candidate.data, "tensors": score.tensor, "layers": [score.layer]}
    lanes: list[dict[str, object]] = [
        {**one, "label": f"{score.tensor} of layer {score.layer}"},
        {**candidate.data, "label": "all layers"},
    ]
    return comparison_of(result.plan.prompts[0], result, model, lanes)
