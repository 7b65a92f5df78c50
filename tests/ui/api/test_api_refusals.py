"""What the API refuses, and that it does so in one line."""

import json
import math
import time
from threading import Event

import httpx
import pytest

from kvq_core.machine.owner import demand_wanted
from tests.support.api_server import SMALL, refusal


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "prompt is missing."),
        ([], "not list"),
        ("x", "not str"),
        ({**SMALL, "lane": []}, "Unknown field 'lane'"),
        ({**SMALL, "lanes": [{"method": "kivo"}]}, "lane 1: Unknown method 'kivo'. Did you mean 'kivi'?"),
        ({**SMALL, "max_new_tokens": 9000}, "max_new_tokens = 9000 is not allowed"),
        ({**SMALL, "prompt": "word " * 9000}, "more than the 8192 tokens of context"),
        ({**SMALL, "model": "../../etc"}, "not a model directory"),
    ],
    ids=["empty", "list", "text", "field", "method", "tokens", "long", "model"],
)
@pytest.mark.real_model
@pytest.mark.parametrize("endpoint", ["/compare", "/estimate"])
def test_what_cannot_run_is_refused_in_one_line(client, endpoint, spec, said):
    line = refusal(client, spec, api_name=endpoint)
    assert said in line and "\n" not in line and "Traceback" not in line and len(line) < 600


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "said"), [("f" * 16, "not in this store"), ("../../etc", "not valid"), ("", "not valid")]
)
@pytest.mark.parametrize("endpoint", ["/run", "/arrays", "/share"])
def test_an_unknown_run_is_refused_in_one_line(client, endpoint, run, said):
    line = refusal(client, run, api_name=endpoint)
    assert said in line and "\n" not in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("endpoint", "arguments", "said"),
    [
        ("/preset", [["first-look"]], "name = ['first-look'] is not allowed: it must be text."),
        ("/run", [], "not the values that are taken here"),
        ("/run", ["f" * 16], "not the values that are taken here"),
        ("/preset", [None], "name = nothing is not allowed"),
        ("/claims", [3, ""], "paper = 3 is not allowed"),
        ("/run", ["f" * 16, 7], "key = 7 is not allowed"),
        ("/run", [{"a": 1}, ""], "not valid"),
        ("/arrays", [[], ""], "not valid"),
        ("/share", ["f" * 16, "", "false"], "it must be true or false"),
        ("/advise", ["f" * 16, "", 8192, 1, "close", "", "", 0], "is not in this store"),
        ("/advise", ["f" * 16, "", "many", 1, "close", "", "", 0], "context = 'many' is not allowed"),
        ("/advise", ["f" * 16, "much", 8192, 1, "close", "", "", 0], "memory = 'much' is not allowed"),
        ("/estimate", [{**SMALL, "temperature": math.nan}], "temperature = nan is not allowed"),
        ("/estimate", [{**SMALL, "seed": 1e400}], "seed = inf is not allowed"),
        ("/compare", [{**SMALL, "prompt": "\ud800"}], "prompt = '\\ud800' is not allowed"),
        ("/compare", [{**SMALL, "\ud800": 1}], "A name = '\\ud800' is not allowed"),
        (
            "/estimate",
            [{**SMALL, "lanes": [{"method": "squat", "knobs": {"regularization": math.inf}}]}],
            "regularization = inf is not allowed",
        ),
    ],
)
def test_arguments_of_another_kind_are_refused_in_one_line(server, endpoint, arguments, said):
    """As raw JSON: gradio_client would not send all of these."""
    raw = json.dumps({"data": arguments}).encode()
    post = httpx.post(f"{server}/gradio_api/call{endpoint}", content=raw, headers={"Content-Type": "application/json"})
    with httpx.stream("GET", f"{server}/gradio_api/call{endpoint}/{post.json()['event_id']}", timeout=90) as stream:
        lines = list(stream.iter_lines())
    assert lines[-3] == "event: error" and said in json.loads(lines[-2].removeprefix("data: "))["error"], lines


@pytest.mark.slow
@pytest.mark.real_model
def test_an_error_nobody_thought_of_tells_nothing_of_the_server(client, engine, monkeypatch):
    def broken(spec, store):
        raise RuntimeError("/srv/secret")
        yield

    monkeypatch.setattr(engine, "_endless", lambda spec: broken(spec, None))
    line = refusal(client, {**SMALL, "prompt": "endless"}, api_name="/compare")
    assert "should not have" in line and "secret" not in line


@pytest.mark.slow
def test_a_study_that_cannot_be_is_refused_in_one_line(client):
    asked = {"lanes": SMALL["lanes"], "prompts": {"file": "/etc/passwd"}}
    assert "the API takes no file" in refusal(client, asked, api_name="/study")
    assert "not in this store" in refusal(client, "0" * 16, api_name="/study_result")
    assert "it must be text" in refusal(client, 5, api_name="/study_rows")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("x", "it must be an object"),
        ({}, "give study, or model and prompts"),
        ({"study": "0" * 16}, "is not in this store"),
        ({"study": "0" * 16, "memory": "24000"}, "memory = '24000' is not allowed"),
        ({"study": 5}, "it must be text"),
        ({"prompts": {"file": "/etc/passwd"}}, "the API takes no file"),
        ({"prompts": {"texts": ["a"]}, "room": 1}, "Unknown field 'room'"),
    ],
)
def test_a_question_that_cannot_be_is_refused_in_one_line(client, asked, said):
    assert said in refusal(client, asked, api_name="/estimate_decision")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("endpoint", "place"),
    [
        ("/estimate_decision", "ui.api.decisions.quote_spec"),
        ("/decide", "ui.api.decisions.quote_spec"),
        ("/study", "ui.api.studies.admit"),
    ],
)
def test_work_before_the_line_stops_when_its_client_is_gone(server, monkeypatch, endpoint, place):
    begun, ended = Event(), Event()

    def endless(*_):
        begun.set()
        try:
            while True:
                demand_wanted()
                time.sleep(0.02)
        finally:
            ended.set()

    monkeypatch.setattr(place, endless)
    asked = {"prompts": {"texts": ["a"]}} | ({"lanes": SMALL["lanes"]} if endpoint == "/study" else {})
    told = httpx.post(f"{server}/gradio_api/call{endpoint}", json={"data": [asked]}).json()
    with httpx.stream("GET", f"{server}/gradio_api/call{endpoint}/{told['event_id']}"):
        assert begun.wait(20) and not ended.wait(0.5)
    assert ended.wait(20)


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", ["/estimate_decision", "/decide", "/estimate_study", "/study"])
def test_more_prompts_than_are_taken_are_refused_before_one_is_made(client, monkeypatch, endpoint):
    monkeypatch.setattr("kvq_core.studies.tasks.suites._prompt", lambda *_: pytest.fail("a prompt was made"))
    asked = {"prompts": {"suite": "needle", "n": 100_000, "lengths": [100_000]}}
    asked |= {"lanes": SMALL["lanes"]} if "study" in endpoint else {}
    assert "bytes; this instance takes" in refusal(client, asked, api_name=endpoint)
