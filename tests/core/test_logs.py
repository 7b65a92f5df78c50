"""The log: a line of JSON for what a server does, and nobody's words in it unless somebody asks for them."""

import json
import logging
import sys

import pytest

from kvq_core.errors import SpecError, StoreError
from kvq_core.logs import configure, log_error, log_event
from kvq_core.pipeline.compare import compare_on
from kvq_core.record.events import Finished, Step
from kvq_core.record.store import open_store
from kvq_core.settings import settings
from kvq_core.spec import DEFAULT_MODEL, parse_spec
from tests.support.tiny_models import tiny

PROMPT = "Where did the purple walrus hide its lantern?"
LABEL = "walrus lane"
SPEC = {
    "prompt": PROMPT,
    "max_new_tokens": 3,
    "notes": "walrus note",
    "system": "You are a walrus.",
    "capture": {"detail": "off"},
    "lanes": [{"method": "per_token", "label": LABEL}],
}


@pytest.fixture(scope="module")
def model(smollm):
    return tiny("llama", tokenizer=smollm.tokenizer)


@pytest.fixture
def log(monkeypatch, capsys):
    """Configures the log as a server does and gives all it wrote, a dict a line."""
    written = []
    root, kvq = logging.getLogger(), logging.getLogger("kvq")
    before = root.handlers[:], root.level, kvq.level

    def configured(**changes: str):
        for name, value in changes.items():
            monkeypatch.setenv(name, value)
        configure(settings())
        return lambda: written.extend(capsys.readouterr().err.splitlines()) or [json.loads(line) for line in written]

    yield configured
    root.handlers[:], root.level, kvq.level = before


def test_a_run_is_told_without_anybodys_words(log, model, tmp_path):
    lines = log()
    store = open_store(str(tmp_path))
    record = next(e for e in compare_on(model, parse_spec(SPEC), store) if isinstance(e, Finished)).record
    list(compare_on(model, parse_spec(SPEC), store))
    started, finished, again, reused = lines()
    assert started["event"] == "run started" and started["run"] == record.id and started["level"] == "info"
    assert started["model"] == DEFAULT_MODEL and started["methods"] == ["per_token"]
    assert started["prompt_tokens"] == len(record.reference.prompt_token_ids)
    assert finished["event"] == "run finished" and finished["run"] == record.id and finished["reused"] is False
    assert finished["new_tokens"] == 3 and finished["seconds"] > 0
    assert again["event"] == "run started" and reused["reused"] is True
    assert "walrus" not in json.dumps(lines()) and record.reference.text not in json.dumps(lines())


def test_prompts_and_answers_are_told_where_that_is_asked_for(log, model):
    lines = log(KVQ_LOG_PROMPTS="1")
    record = list(compare_on(model, parse_spec(SPEC)))[-1].record
    assert [line.get("prompt") for line in lines()] == [PROMPT, None]
    assert lines()[1]["text"] == record.reference.text


def test_a_cancelled_run_says_so(log, model):
    lines = log()
    events = compare_on(model, parse_spec(SPEC))
    next(event for event in events if isinstance(event, Step))
    events.close()
    assert [line["event"] for line in lines()] == ["run started", "run cancelled"]


def test_a_run_whose_record_was_taken_is_not_cancelled(log, model):
    lines = log()
    events = compare_on(model, parse_spec(SPEC))
    next(event for event in events if isinstance(event, Finished))
    events.close()
    assert [line["event"] for line in lines()] == ["run started", "run finished"]


@pytest.mark.parametrize("error", [ValueError(f"bad piece {PROMPT!r}"), SpecError(f"Lane {LABEL!r} is impossible")])
def test_errors_are_told_by_type_and_place(log, model, monkeypatch, error):
    """Messages of errors can quote people; the place of a defect is told, so that it can be found."""

    def broken(*_):
        raise error

    monkeypatch.setattr(sys.modules["kvq_core.pipeline.compare"], "assemble", broken)
    lines = log()
    with pytest.raises(type(error)):
        list(compare_on(model, parse_spec(SPEC)))
    failed = lines()[-1]
    assert failed["event"] == "run failed" and failed["error"] == type(error).__name__
    assert "walrus" not in json.dumps(lines())
    if isinstance(error, ValueError):
        assert failed["level"] == "error" and any("broken" in frame for frame in failed["at"])
    else:
        assert failed["level"] == "warning" and "at" not in failed


def test_errors_are_told_in_full_where_that_is_asked_for(log):
    lines = log(KVQ_LOG_PROMPTS="1")
    log_error("page failed", ValueError(PROMPT))
    assert lines()[0]["reason"] == PROMPT and "ValueError" in lines()[0]["trace"]


def test_what_a_store_says_is_told(log):
    lines = log()
    log_error("run not kept", StoreError("Cannot store run 1: No space left on device."), run="1")
    assert lines()[0]["reason"].endswith("No space left on device.") and lines()[0]["run"] == "1"


def test_a_store_that_is_full_costs_no_result(log, model, monkeypatch, tmp_path):
    lines = log()
    monkeypatch.setenv("KVQ_STORE_LIMIT", "1kB")
    finished = list(compare_on(model, parse_spec(SPEC), open_store()))[-1]
    assert "KVQ_STORE_LIMIT" in finished.unkept and finished.record.reference.text
    assert [line["event"] for line in lines()] == ["run started", "run not kept", "run finished"]


def test_the_level_decides(log):
    lines = log(KVQ_LOG="error")
    log_event("run started")
    log_error("page failed", ValueError())
    assert [line["event"] for line in lines()] == ["page failed"]


def test_a_line_is_a_line_whatever_it_tells(log):
    lines = log(KVQ_LOG_PROMPTS="1")
    log_event("run started", {"prompt": 'a\nb\u2028c\x1b[31m"\u202e'}, model="m\n{}")
    assert len(lines()) == 1 and lines()[0]["model"] == "m\n{}"


def test_warnings_of_libraries_are_lines_too(log):
    lines = log()
    logging.getLogger("some.package").warning("slow %s", "disk")
    logging.getLogger("some.package").info("chatter")
    assert [(line["event"], line["by"]) for line in lines()] == [("slow disk", "some.package")]


def test_without_configuration_nothing_appears(capsys):
    log_error("page failed", ValueError(PROMPT))
    assert capsys.readouterr().err == ""
