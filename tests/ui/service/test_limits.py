"""What an instance lets its visitors ask for: limits and admission."""

import threading
from pathlib import Path

import pytest

import ui.api.decisions
import ui.api.endpoints
import ui.api.studies
from kvq_core.errors import KvqError, LimitError, SpecError
from kvq_core.limits import VARIABLES, Limits, limits
from kvq_core.pipeline.estimate import Estimate, estimate
from kvq_core.pipeline.timings import Cost
from kvq_core.presets import parse_placed, presets
from kvq_core.spec import parse_spec
from kvq_core.studies.sources import PromptSource
from ui.form.setup_panel import possible
from ui.service.admission import Admission, check_plain, check_prompts, checked_cache_at
from ui.service.line import WaitingLine
from ui.service.services import Services, visitor

LANES = [{"method": "kivi"}, {"method": "per_token"}]


def spec(prompt: str = "hello", **more):
    return parse_spec({"prompt": prompt, "lanes": LANES, **more})


def estimated(tokens: int = 100, run_bytes: int = 0, seconds: float | None = 2.0):
    return lambda spec: Estimate(tokens - 10, 8192, Cost(seconds, run_bytes), 10**9 + run_bytes, [], (), tokens)


def admission(monkeypatch, estimate=None, clock=None, **variables) -> Admission:
    for name, value in variables.items():
        monkeypatch.setenv(f"KVQ_{name.upper()}", str(value))
    line = WaitingLine()
    return Admission(line, estimate or estimated(), clock or (lambda: 0.0))


RULES = [{"method": "kivi", "layers": [at]} for at in range(300)]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"prompts": {"rows": [{"prompt": "a"}] * 150_000}}, "more than 50,000 values"),
        ({"prompts": {"suite": "needle", "lengths": [1] * 100_000}}, "more than 50,000 values"),
        ({"prompt": "x", "lanes": [{"rules": [{"method": "kivi"}] * 60_000}]}, "more than 50,000 values"),
        ([[[]] * 60_000], "more than 50,000 values"),
        ({"prompts": {"rows": [{"prompt": "a"}] * 61}}, "61 prompts were given; this instance takes 60"),
        ({"prompts": {"texts": ["a"] * 40_000}}, "40,000 prompts were given"),
        ({"prompt": "x", "lanes": [{"rules": RULES[:200]}] * 17}, "17 lanes were given; this instance takes 16"),
    ],
)
def test_what_a_program_sends_is_counted_before_anything_is_made_of_it(monkeypatch, data, said):
    monkeypatch.setenv("KVQ_MODELS", "some/model")

    def none_is_made(*given):
        raise AssertionError("too late")

    monkeypatch.setattr(ui.api.studies, "parse_study", none_is_made)
    monkeypatch.setattr(ui.api.endpoints, "parse_placed", none_is_made)
    reads = [ui.api.studies._read, ui.api.endpoints._read]
    reads += [lambda data: ui.api.decisions._quoted(data, None)] if "prompts" in data else []
    for read in reads:
        with pytest.raises(LimitError, match=said):
            read(data)


def test_the_largest_that_a_public_instance_takes_is_not_too_many_values(monkeypatch):
    """60 conversations of 64 messages, with a call in every other one, under 16 lanes of 30 rules."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": {"city": "Rome"}}}
    talk = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}] * 32
    lanes = [{"rules": RULES[:30], "label": str(at)} for at in range(16)]
    data = {"prompts": {"rows": [{"messages": talk}] * 60}, "lanes": lanes}
    monkeypatch.setenv("KVQ_MODELS", "some/model")
    check_plain(data)
    monkeypatch.setenv("KVQ_MODELS", "")
    check_plain({"prompts": {"texts": ["a"] * 100_000}})


def test_a_public_instance_has_limits_and_a_private_one_only_what_keeps_it_up(monkeypatch):
    assert limits() == Limits(
        line=64,
        waiting=None,
        per_hour=None,
        work=None,
        lanes=None,
        messages=None,
        tools=None,
        characters=2_000_000,
        seconds=None,
        cells=None,
        prompts=None,
        study_bytes=8_000_000,
    )
    monkeypatch.setenv("KVQ_MODELS", "some/model")
    public = limits()
    assert None not in vars(public).values() and public.characters < 2_000_000
    monkeypatch.setenv("KVQ_MAX_WORK", "0")
    monkeypatch.setenv("KVQ_TIMEOUT", "30")
    assert limits().work is None and limits().seconds == 30


@pytest.mark.parametrize("text", ["-1", "many", "1e3", "9" * 40, "٣"])
def test_a_limit_that_is_no_number_is_refused_by_name(monkeypatch, text):
    for variable in VARIABLES.values():
        with monkeypatch.context() as changed:
            changed.setenv(variable.name, text)
            with pytest.raises(KvqError, match=f"{variable.name} = .* is not a limit"):
                limits()


def test_a_server_cannot_be_told_to_have_no_end_of_the_line(monkeypatch):
    monkeypatch.setenv("KVQ_MAX_LINE", "0")
    with pytest.raises(KvqError, match="from 1"):
        limits()


def test_the_documentation_lists_every_limit_with_its_defaults():
    text = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
    for variable in VARIABLES.values():
        defaults = " | ".join("none" if d is None else f"{d:,}" for d in (variable.private, variable.public))
        assert f"| `{variable.name}` | {variable.meaning} | {defaults} |" in text


def test_every_preset_may_run_on_a_public_instance(monkeypatch, smollm):
    monkeypatch.setenv("KVQ_MODELS", "smollm2-135m-instruct-q4_1")
    gate = Admission(WaitingLine(), estimate)
    offered = [preset for preset in presets().values() if possible(preset)]
    assert len(offered) == len(presets()) - 1  # one is of the second model
    for preset in offered:
        assert gate.quote(preset.spec).refusal is None, preset.name


def test_the_cap_says_what_was_asked_what_is_allowed_and_what_to_do(monkeypatch):
    gate = admission(monkeypatch, estimated(tokens=1200), max_work=3000)
    said = gate.quote(spec()).refusal
    assert "1,200 tokens × 3 caches" in said and "3,600" in said and "allows 3,000" in said
    assert "Shorten to 1,000 tokens" in said and "or keep 1 lane" in said
    with pytest.raises(LimitError, match="allows 3,000"):
        gate.admit(spec())
    assert admission(monkeypatch, estimated(tokens=1000)).quote(spec()).refusal is None


def test_a_long_text_is_refused_before_it_is_tokenized(monkeypatch):
    asked = []
    gate = admission(monkeypatch, lambda spec: asked.append(spec), max_characters=1000)
    with pytest.raises(LimitError, match="has 1,500 characters.* takes 1,000. Shorten it by 500"):
        gate.quote(spec("x" * 700, continuation="y" * 800))
    assert not asked


def test_a_long_text_is_refused_before_a_bundle_is_solved_for_it(monkeypatch):
    monkeypatch.setenv("KVQ_MAX_CHARACTERS", "1000")
    monkeypatch.setattr("ui.service.admission.cache_at", lambda spec: pytest.fail("it was tokenized"))
    asked = {"prompt": "x" * 1500, "bundle": {"name": "equal-bytes"}}
    with pytest.raises(LimitError, match="has 1,500 characters"):
        parse_placed(asked, checked_cache_at)


def test_more_lanes_than_an_instance_takes_are_refused_before_anything_is_loaded(monkeypatch):
    asked = []
    gate = admission(monkeypatch, lambda spec: asked.append(spec), max_lanes=16)
    with pytest.raises(LimitError, match=r"20 lanes were given; this instance takes 16. Remove 4\.$"):
        gate.quote(spec().model_copy(update={"lanes": spec().lanes[:1] * 20}))
    assert not asked


def test_memory_is_asked_for_before_the_run(monkeypatch):
    monkeypatch.setattr("ui.service.admission.room_for", lambda needed, device: 3 * 10**9)
    gate = admission(monkeypatch, estimated(tokens=2000, run_bytes=6 * 10**9))
    said = gate.quote(spec()).refusal
    assert "about 6.00 GB" in said and "3.00 GB are free" in said and "about 1,000 tokens" in said
    gate._line.enter("other", cost=Cost(bytes=4 * 10**9))
    assert gate.quote(spec()).refusal is not None  # the other waits and holds nothing
    turned = gate._line.turn(gate._line.enter("other", cost=Cost(bytes=4 * 10**9)))
    with turned:  # what is at work gives back what it holds before this one begins
        assert gate.quote(spec()).refusal is None


def test_when_its_turn_comes_memory_is_looked_at_again(monkeypatch):
    free = [9 * 10**9]
    monkeypatch.setattr("ui.service.admission.room_for", lambda needed, device: free[0])
    services = Services(None, lambda spec, store: (word for word in ["ran"]), estimated(run_bytes=6 * 10**9))
    assert finished(services.submit(spec(), "a", "a")).error is None
    line, held = services.line, threading.Event()
    services.enter(lambda: (held.wait(10) for _ in range(1)), "blocker", "b")
    job = services.submit(spec(), "a", "a")
    free[0] = 10**9
    held.set()
    assert isinstance(finished(job).error, LimitError) and "1.00 GB are free" in str(job.error)
    assert line.count() == 0


def finished(job):
    for thread in threading.enumerate():
        if thread.name == f"run-{job.ticket}":
            job.taken.set()
            thread.join(20)
    assert job.over
    return job


def test_a_visitor_may_wait_with_so_many_runs(monkeypatch):
    gate = admission(monkeypatch, max_waiting=2, max_line=3)
    for session in "ab":
        with gate.counted("me", session):
            gate._line.enter(session, "me")
    with pytest.raises(LimitError, match="2 runs of yours are at work or waiting; this instance takes 2"):
        with gate.counted("me", "c"):
            raise AssertionError
    with gate.counted("me", "b"):  # replaces its own
        gate._line.enter("b", "me")
    with gate.counted("you", "d"):
        gate._line.enter("d", "you")
    with pytest.raises(LimitError, match="The line is full: 3 runs of 3"), gate.counted("they", "e"):
        raise AssertionError


def test_runs_within_an_hour_are_counted_and_forgotten(monkeypatch):
    now = [0.0]
    gate = admission(monkeypatch, clock=lambda: now[0], runs_per_hour=2)
    for minute in (0, 10):
        now[0] = minute * 60.0
        with gate.counted("me", "s"):
            pass
    now[0] = 20 * 60.0
    with pytest.raises(LimitError, match=r"2 runs within an hour.*in 40 min"), gate.counted("me", "s"):
        raise AssertionError
    with gate.counted("you", "s"):
        pass
    now[0] = 61 * 60.0
    with gate.counted("me", "s"):
        pass
    now[0] = 10**6
    with gate.counted("new", "s"):
        pass
    assert set(gate._started) == {"new"}  # nobody is remembered for longer than an hour


def test_visitors_are_addresses_and_networks():
    class Request:
        def __init__(self, host):
            self.client = type("Address", (), {"host": host})

    assert visitor(Request("192.0.2.7")) == "192.0.2.7" and visitor(object()) == ""
    one, same, other = (visitor(Request(host)) for host in ("2001:db8:1:2:3::4", "2001:db8:1:2::9", "2001:db8::"))
    assert one == same != other


@pytest.mark.parametrize("public", [True, False])
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"suite": "needle", "n": 100_000, "lengths": [100_000]}, "takes"),
        ({"suite": "needle", "n": 60, "lengths": [100_000]}, "bytes; this instance takes"),
        ({"suite": "frequent_words", "n": 60, "length": 100_000}, "bytes; this instance takes"),
        ({"suite": "none such"}, "Unknown suite 'none such'"),
        ({"suite": "needle", "n": 2, "deep": 3}, "Unknown field 'deep'"),
    ],
)
def test_what_is_asked_of_prompts_is_refused_before_one_is_made(monkeypatch, public, asked, said):
    monkeypatch.setattr("kvq_core.studies.tasks.suites._prompt", lambda *_: pytest.fail("a prompt was made"))
    if public:
        monkeypatch.setenv("KVQ_MODELS", "some/model")
    with pytest.raises(KvqError, match=said):
        check_prompts(PromptSource.model_validate(asked))


def test_a_prompt_longer_than_a_run_may_be_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setenv("KVQ_MAX_WORK", "3000")
    asked = PromptSource(suite="needle", n=1, options={"lengths": [1000]})
    check_prompts(asked, lanes=2)
    with pytest.raises(LimitError, match=r"The longest prompt: 1,000 tokens × 4 caches"):
        check_prompts(asked, lanes=3)
    with pytest.raises(SpecError, match="n is no option of a suite"):
        PromptSource(suite="needle", options={"n": 9})
