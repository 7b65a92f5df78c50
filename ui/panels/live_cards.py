"""A run's events as what the cards show, at a pace a browser and a line can follow."""

import time
from collections.abc import Callable

from kvq_core.record.events import Encoding, Event, Filling, LaneProgress, Loading, Prefill, Step
from kvq_core.record.subset import TOGETHER
from kvq_core.spec import ComparisonSpec
from ui.form.lanes import describe_lane, from_spec
from ui.html.cards import cards, failed_card, running_head, waiting_head
from ui.html.escape import lane_tokens, reference_tokens, safe, strip
from ui.html.pieces import spans

UPDATE_S = 0.15  # at most about six updates a second
PREPARING_S = 0.5  # between two updates before the first step
READS, READ = "Reads the prompt", "The prompt is read; the first token comes with the first step."
AFTER_PREFILL, NEXT = "Waits for the prompt to be read.", "Its turn to store keys and values comes next."
STOPPED = "Stopped before its first token."
STORES, STORED = "Stores keys and values of the prompt", "Keys and values of the prompt are stored."
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
    """The cards of one run while it goes on: what each waits for, then the texts as they arrive."""

    def __init__(self, spec: ComparisonSpec, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._labels = [lane.label for lane in spec.lanes]
        self._summaries = [describe_lane(lane)[0] for lane in from_spec(spec.lanes)]
        self._sent = -1e9
        self.reached: tuple[int, int] | None = None  # tokens that have arrived, of how many
        self._await(READS, [AFTER_PREFILL] * len(self._labels))

    def due(self, event: Event) -> bool:
        """Whether this is shown: the first and last step, and others at the page's pace, slower as texts grow."""
        if not isinstance(event, Step):
            return isinstance(event, Prefill | Encoding | Filling)
        now = self._clock()
        pace = max(UPDATE_S, len(self.html) / SENT_A_SECOND)
        if event.done > 1 and event.done < event.total and now - self._sent < pace:
            return False
        self._sent = now
        return True

    def show(self, event: Event) -> None:
        """Bring the cards up to an event."""
        match event:
            case Step():
                self._step(event)
            case Prefill(done=done, total=total):
                self._await(f"{READS}: {done:,} of {total:,} tokens", [AFTER_PREFILL] * len(self._labels))
            case Encoding(index=index):
                told = [STORED if at < index else STORES if at == index else NEXT for at in range(len(self._labels))]
                self._await(READ, told)
            case Filling(labels=labels, done=done, total=total):
                reads = f"Reads the prompt through its own cache: {done:,} of {total:,} tokens"
                self._await(READ, [reads if label in labels else STORED for label in self._labels])

    def stop(self) -> str:
        """The cards of a run that goes on no more: what there is of it."""
        if self.reached is None:
            self._await(STOPPED, [STOPPED] * len(self._labels))
        return self.html

    def _await(self, reference: str, lanes: list[str]) -> None:
        """Cards without text yet, with what each of them is doing."""
        waiting = [*zip(self._labels, self._summaries, lanes, strict=True)][:TOGETHER]
        self.html = cards(
            (waiting_head("Full precision", ""), _doing(reference), ""),
            *((waiting_head(label, summary), _doing(doing), "") for label, summary, doing in waiting),
        )

    def _step(self, step: Step) -> None:
        """The cards of the lanes that decode now."""
        self.reached = step.done, step.total
        every = zip(step.lanes, self._summaries, strict=True)
        shown = [(at, *each) for at, each in enumerate(every) if step.batch is None or at in step.batch]
        lanes = [self._lane(step, lane, summary) for _, lane, summary in shown]
        head = waiting_head("Full precision", "", len(step.tokens))
        self.html = cards((head, reference_tokens(step.tokens), ""), *lanes, numbers=[at for at, *_ in shown])

    def _lane(self, step: Step, lane: LaneProgress, summary: str) -> tuple[str, str, str]:
        if lane.error:
            return failed_card(lane.label, summary, lane.error), "", ""
        texts = spans(step.tokens), spans(lane.tokens, lane.finish)
        text = lane_tokens(*texts, lane.kld, lane.same_top, lane.first_divergence)
        return running_head(lane.label, summary, lane.kld, lane.same_top), text, strip(lane.kld)


def _doing(words: str) -> str:
    state = "now" if words.startswith((READS, STORES)) else "later"
    return f'<p class="doing {state}">{safe(words)}</p>'
