"""A run's events as what the cards show, at a pace a browser and a line can follow."""

import time
from collections.abc import Callable

from kvq_core.events import Encoding, Event, Loading, Prefill, Step
from kvq_core.spec import MAX_LANES, ComparisonSpec
from ui.cards import failed, running_head, waiting_head
from ui.lanes import described, from_spec
from ui.text import lane_tokens, reference_tokens, strip

UPDATE_S = 0.15  # at most about six updates a second
PREPARING_S = 0.5  # between two updates before the first step
HEADS_S = 1.0  # heads are sent whole, texts only what is new: heads follow more slowly


class Paced:
    """Of what happens before the first step only so much that a browser, which shares the machine, keeps up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._shown = -1e9

    def take(self, news: list[Event]) -> list[Event]:
        """What is shown of the news: steps and the end always, of the rest the newest, at most two a second."""
        now = self._clock()
        if not news or (isinstance(news[-1], Loading | Prefill | Encoding) and now - self._shown < PREPARING_S):
            return []
        self._shown = now
        return [event for event in news[:-1] if isinstance(event, Step)][-1:] + news[-1:]


class Board:
    """The cards of one run while it streams."""

    def __init__(self, spec: ComparisonSpec, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._labels = [lane.label for lane in spec.lanes]
        self._summaries = [described(lane)[0] for lane in from_spec(spec.lanes)]
        self.heads = [waiting_head("Full precision", ""), *map(waiting_head, self._labels, self._summaries)]
        self.bodies = [""] * (len(spec.lanes) + 1)
        self.strips = [""] * len(spec.lanes)
        self._sent = self._headed = -1e9

    def due(self, step: Step) -> bool:
        """Whether this step is shown: the first, the last, and others at the page's pace."""
        now = self._clock()
        if step.done > 1 and step.done < step.total and now - self._sent < UPDATE_S:
            return False
        self._sent = now
        return True

    def show(self, step: Step) -> None:
        """Bring the cards up to a step."""
        heads = step.done <= 1 or step.done >= step.total or self._clock() - self._headed >= HEADS_S
        if heads:
            self._headed = self._clock()
        self.bodies[0] = reference_tokens(step.tokens)
        for at, lane in enumerate(step.lanes):
            if lane.error:
                self.heads[at + 1] = failed(lane.label, self._summaries[at], lane.error)
                continue
            if heads:
                self.heads[at + 1] = running_head(lane.label, self._summaries[at], lane.kld, lane.same_top)
            self.bodies[at + 1] = lane_tokens(step.tokens, lane.tokens, lane.kld, lane.same_top, lane.first_divergence)
            self.strips[at] = strip(lane.kld)

    def padded(self) -> list[str]:
        """Heads, bodies and strips for every card the page has, in the order of AnswerCards.streamed."""
        empty = [""] * (MAX_LANES - len(self._labels))
        return [*self.heads, *empty, *self.bodies, *empty, *self.strips, *empty]
