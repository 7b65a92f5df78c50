"""A run's events as what the cards show, at a pace a browser and a line can follow."""

import time
from collections.abc import Callable

from kvq_core.events import Encoding, Event, Filling, LaneProgress, Loading, Prefill, Step
from kvq_core.record.part import TOGETHER
from kvq_core.spec import ComparisonSpec
from ui.form.lanes import describe_lane, from_spec
from ui.html.cards import cards, failed_card, running_head, waiting_head
from ui.html.escape import lane_tokens, reference_tokens, strip
from ui.html.pieces import spans

UPDATE_S = 0.15  # at most about six updates a second
PREPARING_S = 0.5  # between two updates before the first step
SENT_A_SECOND = 300_000  # characters; all cards are sent with every update


class Pacer:
    """Of what happens before the first step only so much that a browser, which shares the machine, keeps up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._shown = -1e9

    def take(self, news: list[Event]) -> list[Event]:
        """What is shown of the news: steps and the end always, of the rest the newest, at most two a second."""
        now = self._clock()
        if not news or (
            isinstance(news[-1], Loading | Prefill | Encoding | Filling) and now - self._shown < PREPARING_S
        ):
            return []
        self._shown = now
        return [event for event in news[:-1] if isinstance(event, Step)][-1:] + news[-1:]


class LiveCards:
    """The cards of one run while it streams."""

    def __init__(self, spec: ComparisonSpec, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._labels = [lane.label for lane in spec.lanes]
        self._summaries = [describe_lane(lane)[0] for lane in from_spec(spec.lanes)]
        waiting = [*zip(self._labels, self._summaries, strict=True)][:TOGETHER]
        self.html = cards(
            (waiting_head("Full precision", ""), "", ""), *((waiting_head(*words), "", "") for words in waiting)
        )
        self._sent = -1e9

    def due(self, step: Step) -> bool:
        """Whether this step is shown: the first, the last, and others at the page's pace, slower as texts grow."""
        now = self._clock()
        pace = max(UPDATE_S, len(self.html) / SENT_A_SECOND)
        if step.done > 1 and step.done < step.total and now - self._sent < pace:
            return False
        self._sent = now
        return True

    def show(self, step: Step) -> None:
        """Bring the cards up to a step: those of the lanes that decode now."""
        every = zip(step.lanes, self._summaries, strict=True)
        now = [each for at, each in enumerate(every) if step.batch is None or at in step.batch]
        lanes = [self._lane(step, lane, summary) for lane, summary in now]
        self.html = cards(
            (waiting_head("Full precision", "", len(step.tokens)), reference_tokens(step.tokens), ""), *lanes
        )

    def _lane(self, step: Step, lane: LaneProgress, summary: str) -> tuple[str, str, str]:
        if lane.error:
            return failed_card(lane.label, summary, lane.error), "", ""
        texts = spans(step.tokens), spans(lane.tokens, lane.finish)
        text = lane_tokens(*texts, lane.kld, lane.same_top, lane.first_divergence)
        return running_head(lane.label, summary, lane.kld, lane.same_top), text, strip(lane.kld)
