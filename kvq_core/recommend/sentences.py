"""The advice in sentences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor

import numpy as np

from kvq_core.analysis.choice import RECOMMENDED_FROM
from kvq_core.analysis.verdict import TIERS
from kvq_core.recommend.constraints import Ask, WeightsFile
from kvq_core.recommend.evidence import AdvisedChoice, Evidence, Option
from kvq_core.sizing.count import ServedBy
from kvq_core.sizing.reserve import allowance
from kvq_core.sizing.units import size_text
from kvq_core.studies.intervals import FEWEST, mean_interval


@dataclass(frozen=True)
class Findings:
    """All that sentences are made of."""

    options: Sequence[Option]
    found: Evidence
    choice: AdvisedChoice
    ask: Ask
    fp16: Option
    weights: WeightsFile
    longest: int
    own_context: int | None

    def option(self, label: str | None) -> Option:
        return next(option for option in self.options if option.label == label)

    @property
    def sequences(self) -> str:
        return f"{self.ask.batch} x {self.ask.context:,} tokens"

    @property
    def room(self) -> str | None:
        """What limits the cache."""
        if self.ask.memory is not None:
            return f"{size_text(self.ask.memory, 3)} for weights and cache"
        if self.ask.cache is not None:
            return f"{size_text(self.ask.cache, 3)} for the cache"
        return None if self.ask.bits is None else f"{self.ask.bits:g} bits an element"

    @property
    def too_small(self) -> bool:
        """Whether the weights alone fill the memory."""
        held = self.weights.bytes
        return self.ask.memory is not None and held is not None and held >= allowance().left(self.ask.memory)

    @property
    def possible(self) -> list[Option]:
        """Those that the engine has and that have figures."""
        return [option for option in self.options if option.refused is None and option.label in self.found.lanes]


def answer_of(told: Findings, kind: str) -> str:
    """In a line."""
    best, choice = told.choice.best, told.choice
    if kind == "few":
        return f"Too few prompts to recommend a lane: the study has {len(told.found.prompts)}, and {FEWEST} are needed."
    if kind == "none":
        return f"None of these: {_none(told)}."
    if kind == "one":
        said = f"{best}: {_cost(told, told.option(best))}, within {told.ask.tolerance.words}"
        on = "" if told.found.recommends else f" on {len(told.found.prompts)} prompts, too few to say what to use"
        return f"{said}{on}; {_agree(choice)}."
    more = f"{choice.more:,} more prompts" if choice.more else "no number of prompts that anybody asks"
    return f"{_undecided(choice, told.ask.tolerance.words)}: {more} would tell; {_agree(choice)}."


def _undecided(choice: AdvisedChoice, tolerance: str) -> str:
    """What the answer hangs on. It says of no two lanes whether they can be told apart: the study's pairs do."""
    if (first := choice.depends) is None:
        return f"{choice.best} or {choice.rival}, which are of one size, whichever loses less"
    other = choice.rival if first == choice.best else choice.best
    return f"{first} if it is within {tolerance}, else {other or 'none of these'}"


def _agree(choice: AdvisedChoice) -> str:
    return f"{whole_percent(choice.agreement or 0.0)} of the resamples of the prompts say the same"


def _cost(told: Findings, option: Option) -> str:
    share = option.size / told.fp16.size
    return f"{size_text(option.size, 3)} for {told.sequences}, {share:.0%} of fp16"


def _none(told: Findings) -> str:
    """Why, in the order of what would help first."""
    if not any(option.refused is None for option in told.options):
        return f"the study has none of {told.ask.engine}'s formats"
    if not told.possible:
        return "no lane that the engine has was run to its end"
    if told.too_small:
        memory = told.ask.memory or 0
        left = size_text(max(0, allowance().left(memory)), 3)
        taken = size_text(told.weights.bytes or 0, 3)
        return f"the weights alone take {taken}, and of {size_text(memory, 3)} weights and cache may have {left}"
    holding = [option for option in told.possible if _holds(told, option)]
    if holding:
        least = min(holding, key=lambda option: option.size)
        return f"{least.label} is within {told.ask.tolerance.words}, but {_cost(told, least)}, does not fit"
    if failed := [option for option in told.possible if _holds(told, option, groups=False)]:
        return f"{failed[0].label} would be within {told.ask.tolerance.words}, but {told.found.failed[failed[0].label]}"
    nearest = min(told.possible, key=lambda option: told.found.kld[:, told.found.at(option.label)].mean())
    return f"no lane is within {told.ask.tolerance.words}; {_loss(told, nearest)} is the nearest"


def _holds(told: Findings, option: Option, groups: bool = True) -> bool:
    return option.label in told.found.holding and not (groups and option.label in told.found.failed)


def _loss(told: Findings, option: Option) -> str:
    found = mean_interval(told.found.kld[:, told.found.at(option.label)])
    ends = "" if found.low is None else f" ({found.low:.2g} to {found.high:.2g})"
    return f"{option.label} with a mean KLD of {found.value:.2g} nats{ends}"


def _beyond(told: Findings, best: Option) -> str:
    high = mean_interval(told.found.kld[:, told.found.at(best.label)]).high
    return "; its interval reaches beyond" if high is not None and high > told.ask.tolerance.kld else ""


def reason_sentences(told: Findings, kind: str) -> Iterator[str]:
    """Three sentences at most: what it loses, what it takes, what else there is."""
    count = len(told.found.prompts)
    if kind in ("few", "none") or told.choice.best is None:
        yield f"{len(told.found.lanes)} lanes were run on {count} prompts."
    else:
        best = told.option(told.choice.best)
        beyond = _beyond(told, best) if kind == "unsure" else ""
        yield f"Over {count} prompts {_loss(told, best)} is within {told.ask.tolerance.in_words}{beyond}."
        smaller = [option for option in told.possible if option.size < best.size]
        lost = f"; of {len(smaller)} smaller lanes none will do" if smaller else ", and no lane takes less"
        room = f", where there are {told.room}" if told.room else ""
        yield f"It takes {_cost(told, best)}{room}{lost}."
    fits = {True: "fits as well", False: "does not fit", None: "was not held against a memory"}[told.fp16.fits]
    yield f"The unquantized cache takes {size_text(told.fp16.size, 3)} and {fits}."


def helps_of(told: Findings, kind: str, nearest_context: int | None) -> Iterator[str]:
    """What would change the answer."""
    if kind == "few":
        yield f"Run the study on {FEWEST} prompts or more; from {RECOMMENDED_FROM} on it says what to use."
    elif not told.found.recommends:
        missing = RECOMMENDED_FROM - len(told.found.prompts)
        yield f"Add {missing} prompts to the study: flags come from {RECOMMENDED_FROM} on."
    if kind == "unsure" and told.choice.more:
        yield f"Add {told.choice.more:,} prompts to the study; what was run is not run again."
    if kind not in ("none", "few") and told.choice.best is not None:
        return
    if not any(option.refused is None for option in told.options):
        yield f"Run a study of the engine's formats, or name another engine than {told.ask.engine}."
        return
    if told.too_small:
        yield "Give more memory, or a smaller file of the weights with --weights."
        return
    holding = [option for option in told.possible if _holds(told, option)]
    if holding and nearest_context:
        yield f"Ask for at most {nearest_context:,} tokens at a batch of {told.ask.batch}, or fewer sequences."
    elif not holding:
        yield from _looser(told)
    if told.fp16.fits:
        yield f"Leave the cache unquantized: {size_text(told.fp16.size, 3)} fit."


def _looser(told: Findings) -> Iterator[str]:
    """The next tier that a lane would reach, and layers that stay fp16."""
    best = min(told.found.kld.mean(0), default=np.inf)
    words = [tier.word for tier in TIERS[:-1] if best <= tier.kld and tier.kld > told.ask.tolerance.kld]
    if words:
        yield f"A tolerance of {words[0]} may have an answer."
    yield "Find the layers that cost most, and leave these in fp16: python -m kvq_core layers."


def untested_of(told: Findings, served: ServedBy | None = None) -> Iterator[str]:
    """``served``: by what, where its reserve hangs on the tokens that it reads at once."""
    ask = told.ask
    yield "Speed: nothing was timed."
    yield f"Other prompts than the study's {len(told.found.prompts)}, and other weights."
    if told.longest and ask.context > told.longest:
        yield f"Contexts beyond {told.longest:,} tokens, the longest that was run; {ask.context:,} were asked for."
    if any(not option.reserved for option in told.options) and ask.engine is not None:
        yield f"What {ask.engine} reserves beyond tensors, for the lanes where that is not known."
    if served is not None and served.at_once:
        yield (
            f"{served.engine} with other --max-num-batched-tokens than {served.at_once:,}: its sliding layers have "
            "room for a window and the tokens in flight."
        )
    if told.weights.chosen:
        yield "What the file of the weights loses itself: loss is that of the cache alone."


def unflagged(option: Option, prompts: int) -> str | None:
    """Why the answer's lane has no flags to type; None where it has."""
    if option.unread:
        return f"Not tested: {option.unread}; its flags stand here after a study with prefill = deployed."
    if option.flags is None:
        return "No released engine is known to store a cache so; its lane is in the JSON."
    if prompts < RECOMMENDED_FROM:
        return f"Flags come from {RECOMMENDED_FROM} prompts on; this answer is of {prompts}."
    return None


def whole_percent(share: float) -> str:
    """Rounded down: 94.9 % of resamples are not the 95 % from which on an answer is sure."""
    return f"{floor(100 * share + 1e-9)}%"
