"""A study in everybody's line, on a tiny model: turns with others, cancel and go on, what fails, and what is shown."""

import threading
import time
from types import SimpleNamespace

import pytest

from kvq_core.errors import KvqError
from kvq_core.pipeline.compare import compare
from kvq_core.pipeline.estimate import estimate
from kvq_core.pipeline.timings import UNKNOWN_COST
from kvq_core.record.events import Loading, Step
from kvq_core.record.store import open_store
from kvq_core.studies.cells import plan
from kvq_core.studies.rows import parquet
from kvq_core.studies.spec import parse_study
from kvq_core.studies.study import study
from tests.support.study_models import study_data, write_model
from ui.service.services import Services
from ui.study.access import demand_open, key_for, my_key, remember, share
from ui.study.files import FILES
from ui.study.results import draw, live_html
from ui.study.watching import standing_line
from ui.study.work import Studies, StudyState, StudyWork


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def planned(model):
    return plan(parse_study(study_data(model, 6)))


class Engine:
    """The real comparison; ``free`` lets cells end, ``asked`` are the runs in the order of their turns."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.free = threading.Event()
        self.free.set()
        self.broken = False

    def compare(self, spec, store):
        self.asked.append(spec.prompt[:12])
        yield Loading(spec.model)
        assert self.free.wait(30)
        if self.broken:
            raise KvqError("no luck")
        yield from compare(spec, store)


@pytest.fixture
def place(tmp_path):
    engine = Engine()
    services = Services(open_store(str(tmp_path / "store")), engine.compare, estimate)
    return SimpleNamespace(engine=engine, services=services, studies=Studies(services))


def begin(place, planned, session: str = "page/study", visitor: str = "one") -> StudyWork:
    return place.studies.begin(planned, session, visitor, UNKNOWN_COST)


def until(true, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def watched(going: StudyWork) -> StudyWork:
    until(lambda: going.standing() is not None and going.over)
    return going


@pytest.mark.slow
def test_a_study_finds_what_the_command_finds(place, planned, tmp_path):
    going = watched(begin(place, planned))
    assert going.error is None and not going.cancelled
    result = going.standing().result
    alone = study(planned.spec, open_store(str(tmp_path / "other")))
    assert result.cells == alone.cells == {"total": 6, "done": 6, "failed": 0, "left_out": 0}
    times = ["seconds"]
    assert result.table.drop(columns=times).to_json() == alone.table.drop(columns=times).to_json()
    assert place.studies.results.get(planned.id).cells == result.cells  # from the store


@pytest.mark.slow
def test_cells_take_turns_with_another_visitors_run(place, planned):
    place.engine.free.clear()
    going = begin(place, planned)
    until(lambda: place.engine.asked)
    other = place.services.submit(
        planned.cells[-1].spec.model_copy(update={"prompt": "w5 w6 w7 others"}), "else", "two"
    )
    place.services.jobs.watch(other.ticket)
    place.engine.free.set()
    until(lambda: bool(going.standing() and other.news() is not None and other.over))
    assert len(place.engine.asked) <= 3 and place.engine.asked[1] == "w5 w6 w7 oth"  # after the cell at work
    watched(going)


@pytest.mark.slow
def test_what_is_cancelled_is_kept_and_goes_on(place, planned):
    going = begin(place, planned)
    until(lambda: (found := going.standing().result) is not None and found.done >= 2)
    going.stop()
    watched(going)
    done = going.standing().result.done
    assert going.cancelled and 2 <= done < 6 and going.failure() is None
    before = len(place.engine.asked)
    again = watched(begin(place, planned))
    assert again.standing().result.done == 6
    assert len(place.engine.asked) - before == 6 - done


def test_another_study_of_the_session_replaces_and_a_closed_page_stops_it(place, planned):
    place.engine.free.clear()
    first = begin(place, planned)
    until(lambda: place.engine.asked)
    second = begin(place, planned)
    assert first.replaced and first.cancelled
    place.studies.forget("page/study")
    place.engine.free.set()
    assert second.cancelled and place.studies.of("page/study") is None
    until(lambda: first.over and second.over)


@pytest.mark.slow
def test_cells_that_fail_are_told_and_the_page_says_so(place, planned):
    place.engine.broken = True
    result = watched(begin(place, planned)).standing().result
    assert result.cells["failed"] == 6 and set(result.failed.values()) == {"no luck"}
    assert "No cell could be computed" in draw(result, None)[0] and "no luck" in draw(result, None)[0]


@pytest.mark.slow
def test_a_result_is_drawn_with_figures_tables_and_files(place, planned):
    result = watched(begin(place, planned)).standing().result
    answer, _, figures, more, _ = draw(result, None)
    assert "stays closest over 6 prompts" in answer and "study " + planned.id in answer
    for name in ("study-forest", "study-pareto", "study-map"):
        assert f'id="plot-{name}"' in figures
    assert "plot-study-recall" not in more and "Groups of prompts" in more and ">even<" in more
    assert "four" in live_html(result)
    told = standing_line(StudyState(result, "p7", Step(3, 6, [], []), 65.0), 9)
    assert "Cell 7 of 9: p7" in told and "0:01:05 left" in told and "Decoding: 3 of 6 tokens" in told
    files = {name: make(result) for name, (_, make) in FILES.items()}
    assert files["Rows (Parquet)"] == parquet(result.rows)
    assert len(files["Rows (CSV)"].decode().splitlines()) == 1 + 12
    assert files["Lanes (CSV)"].decode().startswith("label,model,prompts,kld_mean")


@pytest.mark.slow
def test_on_a_public_instance_a_study_opens_for_its_maker_until_it_is_shared(place, planned, monkeypatch):
    result = watched(begin(place, planned)).standing().result
    demand_open(place.services, planned.id, "")  # a private one
    monkeypatch.setenv("KVQ_MODELS", "any")
    mine = remember([], result, key_for(place.services, planned.id))
    demand_open(place.services, planned.id, my_key(mine, planned.id))
    for key in ("", "0" * 32):
        with pytest.raises(KvqError, match="not shared it"):
            demand_open(place.services, planned.id, key)
        with pytest.raises(KvqError, match="its maker alone"):
            share(place.services, planned.id, key)
    share(place.services, planned.id, my_key(mine, planned.id))
    demand_open(place.services, planned.id, "")


def test_an_unknown_study_is_refused_in_one_line(place):
    with pytest.raises(KvqError, match="not in this store"):
        place.studies.results.get("0" * 16)
