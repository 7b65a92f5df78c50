"""From evidence to the advice: the answer in a line, its reasons, and what was not tested."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvq_core.engines import engines
from kvq_core.recommend.constraints import Advice, Ask, LaneCandidate, WeightsFile, Worst
from kvq_core.recommend.evidence import AdvisedChoice, Evidence, Option, choose_option, evidence
from kvq_core.recommend.sentences import Findings, answer_of, helps_of, reason_sentences, unflagged, untested_of
from kvq_core.sizing.units import size_text
from kvq_core.studies.intervals import mean_interval
from kvq_core.studies.pairs import PairedDifference, pairs

if TYPE_CHECKING:
    import pandas as pd

WORST = 3  # prompts that are named


@dataclass(frozen=True)
class Study:
    """What the advice is computed from: ``table`` has one model's rows, ``longest`` the tokens of the longest sequence
    that was run, ``own_context`` those that the model was made for, ``fp16`` the cache as it is; ``pairs`` the study's
    of that model."""

    id: str
    model: str
    table: "pd.DataFrame"
    options: Sequence[Option]
    fp16: Option
    weights: WeightsFile
    longest: int = 0
    own_context: int | None = None
    windows: bool = False  # whether layers attend to a sliding window, for which an engine's reserve hangs on more
    warnings: Sequence[str] = field(default_factory=tuple)
    nearest_context: int | None = None  # the longest that a lane which holds would fit
    pairs: Sequence[PairedDifference] = ()

    def pair(self, a: str, b: str) -> PairedDifference:
        """Two lanes as the study compares them, with its p; of a lane that it has not, among all lanes of the table."""
        known = (pair for each in ((lambda: self.pairs), (lambda: pairs(self.table))) for pair in each())
        return next(pair for pair in known if {pair.a, pair.b} == {a, b})


def advice_of(study: Study, ask: Ask) -> Advice:
    """Raises SpecError where the study has no figures, or no tasks that are asked for."""
    found = evidence(study.table, [option.label for option in study.options], ask.tolerance)
    choice = choose_option(found, study.options, study.pair)
    candidates = _candidates(found, study.options)
    told = Findings(study.options, found, choice, ask, study.fp16, study.weights, study.longest, study.own_context)
    served = ask.served if study.windows else None
    kind = _kind(found, choice)
    by_label = {each.label: each for each in study.options}
    shown = by_label.get(choice.best or "") if kind != "few" else None
    second = by_label.get(choice.second or "") if shown is not None else None
    return Advice(
        answer=answer_of(told, kind),
        kind=kind,
        sure=choice.sure,
        **_lane(shown, len(found.prompts)),
        runner_up=choice.second if shown is not None else None,
        runner_up_lane=None if second is None else dict(second.lane),
        separates=_separates(study, choice, found) if shown is not None else None,
        agreement=choice.agreement,
        reasons=tuple(reason_sentences(told, kind)),
        front=tuple(candidates),
        worst=tuple(_worst(study.table, choice.best)) if shown is not None else (),
        warnings=tuple(study.warnings),
        untested=tuple(untested_of(told, served)),
        helps=tuple(helps_of(told, kind, study.nearest_context)),
        study=study.id,
        model=study.model,
        prompts=len(found.prompts),
        tolerance=ask.tolerance.words,
        context=ask.context,
        batch=ask.batch,
        room=told.room,
        engine=ask.engine,
        version=engines()[ask.engine].version if ask.engine in engines() else None,
        batched_tokens=served and served.at_once,
        weights=study.weights,
        plain_bytes=round(study.fp16.size),
        plain_fits=study.fp16.fits,
    )


def _lane(shown: Option | None, prompts: int) -> dict[str, Any]:
    """The answer's lane, and its flags or why it has none."""
    if shown is None:
        return dict.fromkeys(("lane", "label", "flags", "unflagged"))
    why = unflagged(shown, prompts)
    return {
        "lane": dict(shown.lane),
        "label": shown.label,
        "flags": None if why else shown.flags,
        "unflagged": why,
    }


def _kind(found: Evidence, choice: AdvisedChoice) -> str:
    """``few`` prompts; ``none`` will do; ``unsure``; or ``one``."""
    if not found.enough:
        return "few"
    if choice.best is None and choice.sure:
        return "none"
    return "one" if choice.sure else "unsure"


def _candidates(found: Evidence, options: Sequence[Option]) -> list[LaneCandidate]:
    """Smallest first."""
    holding = found.holding
    means = dict(zip(found.lanes, found.kld.mean(0).tolist(), strict=True))
    made = []
    for option in sorted(options, key=lambda each: (each.size, means.get(each.label, np.inf))):
        label, done = option.label, option.label in means
        interval = mean_interval(found.kld[:, found.at(label)]) if done else None
        beaten = any(
            other.label in means
            and (other.size, means[other.label]) != (option.size, means.get(label))
            and other.size <= option.size
            and means[other.label] <= means.get(label, np.inf)
            for other in options
        )
        made.append(
            LaneCandidate(
                label=label,
                bytes=option.nbytes,
                reserved=option.reserved,
                shared=option.shared,
                host_copy=option.host_copy,
                counted=option.counted,
                kld_mean=interval and interval.value,
                kld_low=interval and interval.low,
                kld_high=interval and interval.high,
                fits=option.fits,
                holds=label in holding,
                front=done and not beaten,
                policy=option.policy,
                flags=option.flags if found.recommends else None,
                why_not=_why_not(option, found, label in holding),
            )
        )
    return made


def _why_not(option: Option, found: Evidence, holds: bool) -> str | None:
    if option.label in found.failed:
        return found.failed[option.label]
    if option.refused is not None:
        return option.refused
    if option.fits is False:
        return "it does not fit"
    return None if holds else "it loses more than is tolerated"


def _separates(study: Study, choice: AdvisedChoice, found: Evidence) -> str | None:
    """Bytes of both, and how the study compares their losses; without a second lane, what comes nearest."""
    if choice.best is None:
        return None
    sizes = {option.label: option.size for option in study.options}
    if choice.second is None:
        return _nearest(study, choice.best, found)
    ratio = sizes[choice.second] / sizes[choice.best]
    told = study.pair(choice.best, choice.second).sentence
    return f"{choice.second} takes {ratio:.2f} times the bytes of {choice.best}. {told}"


def _nearest(study: Study, best: str, found: Evidence) -> str:
    """Of the other lanes that could be had the one that loses least, and why it is none."""
    others = [o for o in study.options if o.label != best and o.label in found.lanes and o.refused is None]
    least = min(others, key=lambda each: found.kld[:, found.at(each.label)].mean(), default=None)
    if least is None:
        return "No other lane was run that could be had."
    mean = found.kld[:, found.at(least.label)].mean()
    why = _why_not(least, found, least.label in found.holding) or "it is no answer"
    return f"No other lane will do. The nearest is {least.label}, {size_text(least.size, 3)}, {mean:.2g} nats: {why}."


def _worst(table: "pd.DataFrame", label: str | None) -> list[Worst]:
    rows = table[table["lane"] == label].nlargest(WORST, "kld_mean")
    return [
        Worst(prompt=str(row.prompt), kld=float(row.kld_mean), run=str(row.run), link=f"?run={row.run}")
        for row in rows.itertuples()
    ]
