"""What lanes lack, what training it would take, and the training itself, on a tiny model; no network."""

import asyncio
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
import torch

from kvq_core.codebooks.files import codebook_folder, codebooks
from kvq_core.errors import KvqError, MethodError, SpecError
from kvq_core.machine.progress import Progress
from kvq_core.methods import Method, Prompt, make, methods
from kvq_core.spec import Lane
from kvq_core.training import offer as training
from kvq_core.training.em import EmSettings, train_stage
from kvq_core.training.offer import Offer, TrainingResult, offer, train_missing
from kvq_core.training.texts import Texts
from tests.support.codebook_samples import Letters
from tests.support.tiny_models import tiny
from ui.panels.training import TrainingRequest, offer_html, offer_updates, stream
from ui.service.services import Services

KNOBS = {"levels": 4, "stages": 2, "codebooks": "mine"}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KVQ_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def model(monkeypatch):
    found = replace(tiny("llama"), tokenizer=Letters())
    monkeypatch.setattr(training, "load", lambda *_: found)
    brief = partial(training.Request, value_steps=10, em=EmSettings(steps=6))
    monkeypatch.setattr(training, "Request", brief)
    return found


def lane(label: str = "", **knobs: object) -> Lane:
    return Lane(label=label, method="commvq", knobs={**KNOBS, **knobs})


def asked(*lanes: Lane) -> Offer:
    found = offer("tiny-llama", None, lanes, "quick")
    assert found is not None
    return found


def own() -> list[str]:
    return [book.info.kind for book in codebooks() if not book.shipped]


def test_only_what_is_missing_is_offered_and_offering_trains_nothing(model):
    assert offer("tiny-llama", None, [Lane(method=name) for name in methods() if name != "commvq"]) is None
    found = asked(Lane(method="kivi"), lane("small"))
    assert found.lanes == ("small",) and [r.kinds for r in found.requests] == [("keys",), ("values",)]
    assert found.refusal is None and found.seconds > 0 and not own() and not codebook_folder().exists()
    assert offer("tiny-llama", None, [lane(pairs_per_group=5)]) is None  # cannot run on this model at all
    known = {"commvq": {}, "oscar": {"calibration": "mine"}, "kvquant": {"calibration": "mine"}}
    asking = {name: cls for name, cls in methods().items() if cls.lacks is not Method.lacks}
    assert set(asking) == set(known) and all(make(name, **known[name]).lacks(model.ref) for name in asking)


def test_lanes_share_what_one_training_gives():
    """Short codebooks begin long ones; values do not depend on what keys are."""
    found = asked(lane(), lane(stages=4), lane(stages=3), lane(levels=8), lane(codebooks="other"))
    keys = [(r.name, r.levels, r.stages) for r in found.requests if r.kinds == ("keys",)]
    values = [(r.name, r.bits) for r in found.requests if r.kinds == ("values",)]
    assert keys == [("mine", 4, 4), ("mine", 8, 2), ("other", 4, 2)] and values == [("mine", 1), ("other", 1)]


def test_cost_follows_the_work():
    one, two = (asked(lane(stages=n)) for n in (2, 4))
    assert two.parts[1] == pytest.approx(2 * one.parts[1]) and two.parts[0] == one.parts[0]
    whole = offer("tiny-llama", None, [lane()], "full")
    assert whole is not None and whole.parts[1] == pytest.approx(3 * one.parts[1])  # 12,288 tokens for 4,096


@pytest.mark.slow
def test_training_tells_how_far_it_is_and_the_lane_can_run(model, monkeypatch):
    monkeypatch.setattr(training, "TELL_S", 0.01)
    method = make("commvq", **KNOBS)
    keys = torch.randn(3, 2, 200, 32)
    prompt = Prompt(keys, keys, None, model=model.ref, layers=(0, 1, 2))
    with pytest.raises(MethodError, match="codebooks train"):
        method.fit(prompt)
    found = asked(lane())
    *progress, last = train_missing(found)
    assert isinstance(last, TrainingResult) and [book.kind for book in last.codebooks] == ["keys", "values"]
    shares = [event.share for event in progress if isinstance(event, Progress)]
    assert shares == sorted(shares) and len(set(shares)) > 3 and shares[-1] <= 1
    assert {"Training keys", "Training values"} <= {event.doing for event in progress}
    assert offer("tiny-llama", None, [lane()]) is None and not list(codebook_folder().glob("*.partial"))
    assert "of pydoc_data.topics" in method.fit(prompt).notes[0]
    sizes = [book.path.stat().st_size for book in codebooks() if not book.shipped]
    assert found.bytes == pytest.approx(sum(sizes), rel=0.35)  # of tiny files a third is header and biases


@pytest.mark.slow
def test_a_cancelled_training_goes_on_where_it_stopped(monkeypatch):
    monkeypatch.setattr(training, "TELL_S", 0.001)
    events = train_missing(asked(lane()))
    for event in events:
        if isinstance(event, Progress) and event.doing == "Training keys" and event.done >= 2:
            break
    events.close()
    assert "training" not in [thread.name for thread in threading.enumerate()]
    kept = len(list(codebook_folder().glob("*.partial/*.piece")))
    assert kept >= 2 and not own()
    calls = []
    monkeypatch.setattr("kvq_core.training.keys.train_stage", lambda *a: calls.append(1) or train_stage(*a))
    assert isinstance(list(train_missing(asked(lane())))[-1], TrainingResult)
    assert len(calls) == 3 * 2 - kept and own() == ["keys", "values"]


def test_what_goes_wrong_in_the_work_reaches_the_listener(monkeypatch):
    monkeypatch.setattr("kvq_core.training.train.read_texts", lambda _: Texts("note.txt", ("short",)))
    with pytest.raises(SpecError, match=r"note\.txt gives 5 tokens"):
        list(train_missing(asked(lane())))


def test_a_shared_instance_says_why_it_does_not_train(monkeypatch):
    monkeypatch.setenv("KVQ_MODELS", "tiny-llama")
    found = asked(lane())
    assert "does not train" in found.refusal and "--name mine" in found.commands[0]
    with pytest.raises(KvqError, match="does not train"):
        list(train_missing(found))
    area, words, budget, train, *_ = offer_updates(found)
    assert area["visible"] and not budget["visible"] and not train["visible"] and "does not train" in words


# --- the page ---------------------------------------------------------------------------------------------------------


def services(train) -> Services:
    return Services(None, None, None, offer=offer, train=train)


def start(page: Services) -> dict:
    lanes = [{"uid": 1, **lane().model_dump(mode="json")}]
    return {"id": TrainingRequest("tiny-llama", {}, lanes, "quick").submit(page, "someone", "").ticket}


def updates_of(page: Services, begun: dict, seen=lambda update: None) -> list:
    async def watch() -> list:
        updates = []
        async for update in stream(begun, page):
            updates.append(update)
            seen(update)
        return updates

    return asyncio.run(watch())


def test_the_offer_is_text():
    found = replace(asked(lane("<b>${x}")), model_title="<script>")
    assert "<script>" not in offer_html(found) and "<b>$" not in offer_html(found)
    assert "keys (4 levels, 2 stages) and values (1 bit)" in offer_html(found) and "5,120 tokens" in offer_html(found)


@pytest.mark.slow
def test_a_page_sees_the_training_to_its_end():
    page = services(train_missing)
    updates = updates_of(page, start(page))
    assert "Codebooks trained" in updates[-1][0] and updates[-1][3]["visible"] is False
    assert all(update[3]["visible"] for update in updates[:-1]) and page.line.count() == 0
    assert "Nothing is missing" in updates_of(page, start(page))[-1][0]


def test_a_page_that_gives_up_stops_the_training():
    closed = []

    def endless(found):
        try:
            while True:
                time.sleep(0.01)
                yield Progress("Training keys", 1, 2, "stages", share=0.5, left=90.0)
        finally:
            closed.append(found)

    page = services(endless)
    begun = start(page)
    updates = updates_of(page, begun, lambda update: page.jobs.forget("someone"))
    assert (
        "about 2 min left" in updates[0][0]
        and "width:50%" in updates[0][0]
        and "Training cancelled" in updates[-1][0]
        and len(closed) == 1
    )
    assert updates_of(page, begun) == [] and len(closed) == 1  # watched once
    begun = start(page)
    page.jobs.forget("someone")
    assert updates_of(page, begun) == [] and page.line.count() == 0


def test_a_training_nobody_watches_does_not_hold_up_the_line(monkeypatch):
    """A client may press Train and never ask how it goes."""
    page = services(lambda found: (TrainingResult(()) for _ in range(1)))
    start(page)
    run = page.jobs.start("other", lambda: (TrainingResult(()) for _ in range(1)))
    until = time.monotonic() + 20
    while not run.over:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert run.error is None


def test_errors_are_told_where_the_person_is():
    def impossible(found):
        raise SpecError("no <i>text</i>")
        yield

    page = services(impossible)
    (update,) = updates_of(page, start(page))
    assert "no &lt;i&gt;text" in update[0] and update[2]["interactive"]


def test_a_shared_instance_takes_no_training_into_the_line(monkeypatch):
    monkeypatch.setenv("KVQ_MODELS", "tiny-llama")
    page = services(train_missing)
    with pytest.raises(KvqError, match="does not train"):
        start(page)
    assert page.line.count() == 0
