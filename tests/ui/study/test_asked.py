"""What the form of a study holds, and what this instance takes: prompts of all kinds, bad input, limits."""

import base64
import json

import pytest

from kvq_core.errors import KvqError
from kvq_core.record.store import open_store
from kvq_core.studies.estimate import estimate
from kvq_core.studies.spec import parse_study
from kvq_core.studies.tasks import SUITES
from tests.support.study_models import LANES, prompt, study_data, write_model
from ui.form.lanes import from_spec
from ui.study.asked import FILE, TASKS, Form, study_of
from ui.study.form import estimate_of
from ui.study.quote import admit, quote, quote_html


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


@pytest.fixture(scope="module")
def lanes():
    from kvq_core.spec import parse_spec

    return from_spec(parse_spec({"prompt": "-", "lanes": LANES}).lanes)


def sent(name: str, data: bytes) -> str:
    return json.dumps({"name": name, "bytes": len(data), "data": base64.b64encode(data).decode(), "at": 1})


def refused(form: Form, lanes) -> str:
    with pytest.raises(KvqError) as error:
        study_of(form, lanes)
    said = str(error.value)
    assert "\n" not in said
    return said


def test_pasted_lines_are_prompts_and_pasted_objects_rows(lanes):
    plain = study_of(Form(text="one\n\ntwo\n"), lanes).spec
    assert [each.prompt for each in plain.prompts.rows] == ["one", "two"]
    assert [lane.label for lane in plain.comparison.lanes] == ["four", "two"]
    rows = study_of(Form(text='{"prompt": "one", "group": "g"}\n{"prompt": "two"}'), lanes).spec.prompts.rows
    assert [(each.id, each.group) for each in rows] == [("1", "g"), ("2", "")]


def test_what_a_last_answer_is_is_asked_once_for_all_rows(lanes):
    chat = [{"role": "user", "content": "Name a colour."}, {"role": "assistant", "content": "Teal."}]
    text = "\n".join(json.dumps({"messages": chat, "id": id}) for id in "ab")
    assert "last" in refused(Form(text=text), lanes)
    scored = study_of(Form(text=text, last="answer"), lanes).spec.prompts.rows
    assert [(each.continuation, len(each.messages)) for each in scored] == [("Teal.", 1)] * 2
    again = study_of(Form(text=text, last="context"), lanes).spec.prompts.rows
    assert [(each.continuation, len(each.messages)) for each in again] == [(None, 2)] * 2


def test_a_file_is_read_as_the_command_line_reads_it(lanes):
    csv = b"id,prompt\na,one\nb,two\n"
    found = study_of(Form(way=FILE, file=sent("../up/p.csv", csv), lanes="equal-windows"), lanes).spec
    assert [each.id for each in found.prompts.rows] == ["a", "b"] and len(found.comparison.lanes) > 3


def test_bad_input_is_named_with_its_line_and_the_rest_kept_where_asked(lanes):
    assert "no column prompt or messages" in refused(Form(way=FILE, file=sent("p.csv", b"text\none\n")), lanes)
    broken = '{"prompt": "one"}\n{"prompt": \n{"prompt": "three"}'
    assert "line 2" in refused(Form(text=broken), lanes)
    kept = study_of(Form(text=broken, skip=True), lanes)
    assert len(kept.spec.prompts.rows) == 2 and "line 2" in kept.broken[0]
    twice = '{"prompt": "one", "id": "a"}\n{"prompt": "two", "id": "a"}'
    assert "'a' is given to prompts 1, 2" in refused(Form(text=twice), lanes)
    for odd in ("{", "[]", '{"name": "p.csv", "bytes": 1e999}', '{"name": "p.csv", "data": 5}', "[" * 10**5):
        assert "choose it again" in refused(Form(way=FILE, file=odd), lanes)
    for name in ("..", "../..", ".", "", "a/..", "..\x00"):
        assert "files end in" in refused(Form(way=FILE, file=sent(name, b"x")), lanes)
    for number in (float("inf"), float("nan"), 2.5):
        assert "whole number" in refused(Form(text="one", new_tokens=number), lanes)
    assert "whole number" in refused(Form(text="one", new_tokens=None), lanes)
    assert "lengths" in refused(Form(way=TASKS, lengths="long"), lanes)


def test_tasks_take_lengths_depths_and_their_own_number_of_tokens(lanes):
    spec = study_of(
        Form(way=TASKS, n=4, lengths="40, 80", depths="0, 1", new_tokens=SUITES["needle"].new_tokens), lanes
    ).spec
    prompts, _ = spec.prompts.read()
    assert [(each.facts["words"], each.facts["depth"]) for each in prompts] == [(40, 0), (40, 1), (80, 0), (80, 1)]
    assert spec.comparison.max_new_tokens == 32


def test_the_estimate_is_that_of_the_command_and_warns_of_few_prompts(model, store):
    rows = [{"id": str(at), "prompt": text} for at, text in enumerate((prompt(0), prompt(1), prompt(2, words=400)), 1)]
    found = quote(parse_study({**study_data(model), "prompts": {"rows": rows}}), store)
    assert found.estimate.sentence == estimate(found.plan, store=store).sentence
    told = quote_html(found, ("p.jsonl, line 9: broken",))
    assert "2 cells" in told and "3 prompts: there will be no intervals" in told and "line 9" in told
    assert "Left out" in told and found.plan.left_out[0].prompt == "3"  # beyond the context of 256


def test_an_empty_form_is_asked_for_prompts_and_a_wrong_one_told(store):
    values = ["Paste", "", "", False, "needle", 20, 0, "", "", "", [], "compare", 64, []]
    assert "Give prompts" in estimate_of(store, *values)[0]
    values[1] = "one"
    assert "refused" in estimate_of(store, *values)[0]  # no lanes


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("KVQ_MAX_PROMPTS", "1", "2 prompts were given; this instance takes 1"),
        ("KVQ_MAX_CELLS", "1", "are 2 cells; this instance takes 1"),
        ("KVQ_MAX_LANES", "1", "this instance takes 1. Remove 1"),
        ("KVQ_MAX_WORK", "20", "The longest prompt, p0: "),
    ],
)
def test_limits_refuse_in_one_line(monkeypatch, model, store, variable, value, said):
    monkeypatch.setenv(variable, value)
    with pytest.raises(KvqError, match=said):
        admit(parse_study(study_data(model, 2)), store)


def test_bytes_and_tasks_are_counted_before_anything_is_read(monkeypatch, lanes):
    monkeypatch.setenv("KVQ_MAX_STUDY_BYTES", "10")
    monkeypatch.setenv("KVQ_MAX_PROMPTS", "5")
    assert "30 bytes; this instance takes 10" in refused(Form(text="x" * 30), lanes)
    assert "takes 10" in refused(Form(way=FILE, file=json.dumps({"name": "p.csv", "bytes": 11, "at": 1})), lanes)
    assert "takes 5" in refused(Form(way=TASKS, n=100_000), lanes)
