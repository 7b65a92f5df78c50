"""What the panels are given: the engine, the store, and what sessions share."""

import ipaddress
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvq_core.errors import StoreError
from kvq_core.inspection.look import looking
from kvq_core.inspection.report import Inspection
from kvq_core.limits import limits
from kvq_core.machine import files
from kvq_core.machine.progress import Progress
from kvq_core.packed.lanes import LaneMeasurement, SkippedLane, measure_spec
from kvq_core.packed.lanes import MeasureRequest as Measuring
from kvq_core.pipeline.added import adding, captures_of, capturing, spec_of
from kvq_core.pipeline.estimate import Estimate
from kvq_core.pipeline.layer_look import look_held, looking_at, spec_of_look
from kvq_core.pipeline.timings import UNKNOWN_COST, Cost
from kvq_core.pipeline.why import asking_why, spec_of_why
from kvq_core.record.events import Event, Finished
from kvq_core.record.fields import Record
from kvq_core.record.store import Store
from kvq_core.settings import settings
from kvq_core.spec import ComparisonSpec, Lane, parse_spec
from kvq_core.training.offer import Offer, TrainingResult, offer, train_missing
from ui.service.admission import Admission, check_memory
from ui.service.housekeeping import own_folder
from ui.service.jobs import Job, Jobs, Work
from ui.service.line import WaitingLine
from ui.service.records import RecordCache

if TYPE_CHECKING:
    from kvq_core.mend.mend import Mended, MendRequest

# Every handler of the page: not part of the API, and no overlay over what people read.
# With nothing to show progress on: the browser would look up, copy and set every output of every event so far, twice
# an event. That was a third of the time until a run can be used.
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "show_progress_on": []}
# Short handlers answer at once, beside a run that holds the engine. They are queued all the same: only queued events
# report changes of a gr.State to its listeners.
SWIFT = {**QUIET, "concurrency_limit": None}
# What somebody chooses anew before the last choice is answered is asked for after it: Gradio passes over it else.
LATEST = {**SWIFT, "trigger_mode": "always_last"}
# What changes the form's lanes is done in the order it was asked for, each on what those before it made of them.
LANES = {**QUIET, "concurrency_limit": 1, "concurrency_id": "lanes", "trigger_mode": "multiple"}


def _mending(request: "MendRequest") -> Generator["Progress | Mended"]:
    from kvq_core.mend.mend import mending  # it loads gguf, which an app that starts does not

    yield from mending(request)


@dataclass
class Services:
    """One a server."""

    store: Store
    compare: Callable[..., Generator[Event]]  # of spec and store, on a public instance of its owner too
    estimate: Callable[[ComparisonSpec], Estimate]
    add: Callable[..., Generator[Event]] = adding
    ask_why: Callable[..., Generator[Event]] = asking_why
    look_again: Callable[..., Generator[Event]] = looking_at
    capture: Callable[..., Generator[Event]] = capturing
    offer: Callable[..., Offer | None] = offer
    train: Callable[[Offer], Generator[Progress | TrainingResult]] = train_missing
    measure: Callable[[ComparisonSpec, Measuring], Generator[Progress | LaneMeasurement | SkippedLane]] = measure_spec
    look: Callable[..., Generator[Progress | Inspection]] = looking
    mend: Callable[["MendRequest"], Generator["Progress | Mended"]] = _mending
    records: RecordCache = field(init=False)
    line: WaitingLine = field(default_factory=WaitingLine)
    jobs: Jobs = field(init=False)
    admission: Admission = field(init=False)
    downloads: Path = field(default_factory=own_folder)

    def __post_init__(self) -> None:
        self.records = RecordCache(self.store)
        self.jobs = Jobs(self.line)
        self.admission = Admission(self.line, self.estimate)

    def submit(self, spec: ComparisonSpec, session: str, visitor: str) -> Job:
        """Admit a run and put it in line: how every run begins, the page's and the API's.

        ``session`` names what its Cancel stops and its next run replaces; ``visitor`` whom the limits count, see
        ``visitor``. Take the job with ``jobs.watch(job.ticket)`` and ``follow`` it: one that nobody looks at is
        dropped. Raises KvqError with the reason where it may not start; may take as long as loading the model does.
        """
        return self._admitted(spec, partial(self.compare, spec, self.store, *_owner(visitor)), session, visitor)

    def extend(self, parent: Record, lane: Lane, session: str, visitor: str, aside: bool = False) -> Job:
        """``submit`` of a lane that is added to a finished run; ``aside``: see ``Jobs.start``."""
        work = partial(self.add, parent, [lane], self.store, *_owner(visitor))
        return self._admitted(spec_of(parent, [lane]), work, session, visitor, aside)

    def explain(self, parent: Record, at: int, session: str, visitor: str) -> Job:
        """``submit`` of the run that tells what the damage of a finished run's lane comes from; it stands aside."""
        work = partial(self.ask_why, parent, at, self.store, *_owner(visitor))
        return self._admitted(spec_of_why(parent, at), work, session, visitor, aside=True)

    def look_at(self, whole: Record, lanes: Sequence[int], layer: int, session: str, visitor: str) -> Job:
        """``submit`` of a look at some lanes of a finished run, as it is drawn, in one layer; it stands aside."""
        work = partial(self.look_again, whole, lanes, layer, self.store, *_owner(visitor))
        return self._admitted(spec_of_look(whole, lanes, layer), work, session, visitor, aside=True)

    def look_through(self, shown: Record, parent: Record, at: int, session: str, visitor: str) -> Job:
        """``submit`` of a look at a lane that was added to the run ``shown``, that of ``parent``, with what that run
        keeps of its own lanes; it stands aside."""
        kept = parse_spec(shown.spec).capture
        work = partial(self.capture, parent, at, self.store, *(_owner(visitor) or ("",)), kept)
        return self._admitted(captures_of(parent, at, kept), work, session, visitor, aside=True)

    def look_held(self, whole: Record, lanes: Sequence[int], layer: int) -> Finished | None:
        """``look_at`` of what memory holds, at once; None where it does not. Raises KvqError."""
        return look_held(whole, lanes, layer, self.store) if lanes else None

    def _admitted(self, spec: ComparisonSpec, run: Work, session: str, visitor: str, aside: bool = False) -> Job:
        asked = time.monotonic()
        found = self.admission.admit(spec)

        def work() -> Generator[Event]:
            check_memory(found, len(spec.lanes))
            yield from run()

        job = self.enter(work, session, visitor, found.cost, limits().seconds, aside)
        if self.jobs.has_left(session, asked):  # closed while it was looked at: nobody was there to be forgotten yet
            self.jobs.forget(session)
        return job

    def enter(
        self,
        work: Work,
        session: str,
        visitor: str,
        cost: Cost = UNKNOWN_COST,
        seconds: float | None = None,
        aside: bool = False,
    ) -> Job:
        """Put other work that needs the machine to itself in line. Raises LimitError where there is no room."""
        with self.admission.counted(visitor, session):
            return self.jobs.start(session, work, visitor, cost, seconds, aside)

    def file(self, name: str, data: bytes) -> str:
        """The path of a file to download, whole from the moment it is there; made once: its name says all about it.

        Raises StoreError where it cannot be made.
        """
        path = self.downloads / name
        if not path.is_file():
            try:
                self.downloads.mkdir(mode=0o700, exist_ok=True)  # some systems clear out what lies about for days
                files.write(path, data)
            except OSError as error:
                raise StoreError(f"The file for the download cannot be made: {error.strerror or error}.") from None
        return str(path)


def _owner(visitor: str) -> tuple[str, ...]:
    """For whom what was read is held in memory; on a private instance for everybody."""
    return (visitor,) if settings().public else ()


def visitor(request: Any) -> str:
    """Whom limits count: the address a request came from, of IPv6 the network, which one person has whole.

    Behind a proxy the address is the one it passes on, if FORWARDED_ALLOW_IPS names the proxy (uvicorn reads it).
    """
    host = getattr(getattr(request, "client", None), "host", None) or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else host
