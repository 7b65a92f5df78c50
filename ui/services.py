"""What the panels are given: the engine, the store, and what sessions share."""

import tempfile
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

from kvq_core.estimate import Estimate
from kvq_core.events import Event
from kvq_core.spec import ComparisonSpec
from kvq_core.store import Store
from kvq_core.training import Offer, Trained, Training, offer, train_missing
from ui.desk import Desk
from ui.jobs import Jobs
from ui.shelf import Shelf

# Every handler of the page: not part of the API, and no overlay over what people read.
QUIET = {"api_visibility": "private", "show_progress": "hidden"}
# Short handlers answer at once, beside a run that holds the engine. They are queued all the same: only queued events
# report changes of a gr.State to its listeners.
SWIFT = {**QUIET, "concurrency_limit": None}


@dataclass
class Services:
    """One a server."""

    store: Store
    compare: Callable[[ComparisonSpec, Store], Generator[Event]]
    estimate: Callable[[ComparisonSpec], Estimate]
    offer: Callable[..., Offer | None] = offer
    train: Callable[[Offer], Generator[Training | Trained]] = train_missing
    shelf: Shelf = field(init=False)
    desk: Desk = field(default_factory=Desk)
    jobs: Jobs = field(init=False)
    downloads: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="kvq-downloads-")))

    def __post_init__(self) -> None:
        self.shelf = Shelf(self.store)
        self.jobs = Jobs(self.desk)
