"""Studies on a tiny model: shared cells, what is left out, damaged runs, and stores that fail."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kvq_core.cli.main import main
from kvq_core.cli.study import write_out
from kvq_core.cli.study_text import describe_study
from kvq_core.errors import SpecError, StoreError
from kvq_core.models import load
from kvq_core.pipeline.compare import compare
from kvq_core.record.beside import present_in, read_beside, write_beside
from kvq_core.spec import canonical_json, parse_spec
from kvq_core.studies.cells import plan
from kvq_core.studies.estimate import estimate
from kvq_core.studies.executors import compute
from kvq_core.studies.rows import read_rows
from kvq_core.studies.spec import parse_study
from kvq_core.studies.stored_plan import kept_plan
from kvq_core.studies.study import run_plan, stored_study, study
from kvq_core.studies.summary import _slope, task_lines
from tests.support.study_models import LANES, prompt, study_data, write_model, write_study


@pytest.mark.slow
def test_a_cell_is_the_run_that_the_same_comparison_is_alone(model, store):
    spec = parse_study(study_data(model, 2))
    result = study(spec, store)
    cell = result.plan.cells[1]
    alone = parse_spec(
        {
            "model": str(model),
            "prompt": prompt(1),
            "chat": False,
            "ignore_eos": True,
            "max_new_tokens": 6,
            "lanes": LANES,
            "floors": "both",
            "free_text": False,
            "capture": {"detail": "off"},
        }
    )
    *_, event = compare(alone)
    assert event.record.id == cell.id and event.record.spec == cell.spec.model_dump(mode="json")
    record, arrays = store.load(cell.id)
    assert set(arrays) == set(event.arrays) and all(arrays[name].equal(event.arrays[name]) for name in arrays)
    assert result.cells == {"total": 2, "done": 2, "failed": 0, "left_out": 0}
    assert list(result.table["kld_mean"][2:]) == [lane.metrics.kld_mean for lane in record.lanes]


def test_planning_reads_no_weights_and_gives_the_ids_of_runs(model):
    spec = parse_study(study_data(model, 3, system=None))
    planned = plan(spec)
    loaded = load(str(model))
    from kvq_core.pipeline.assemble import run_id
    from kvq_core.pipeline.prompt import script

    for cell in planned.cells:
        assert cell.id == run_id(loaded, cell.spec, script(loaded, cell.spec).ids)
        assert canonical_json(cell.spec.changed()) == cell.spec.canonical()


@pytest.mark.slow
def test_what_is_there_is_not_computed_and_studies_that_overlap_share(model, store, monkeypatch):
    study(parse_study(study_data(model, 3)), store)
    asked = []
    monkeypatch.setattr("kvq_core.studies.executors.compute", lambda work: asked.append(work) or compute(work))
    again = study(parse_study(study_data(model, 4)), store)
    assert [work.cell.prompt.id for work in asked] == ["p3"] and again.cells["done"] == 4
    write_beside(store, f"studies/{again.id}/rows", b"damaged")
    (Path(store.root) / "studies" / again.id / "rows").write_bytes(b"cut off")
    assert read_beside(store, f"studies/{again.id}/rows") is None
    assert stored_study(again.plan, store).summary() == again.summary(), "rows are read from the runs again"
    assert len(asked) == 1


@pytest.mark.slow
def test_a_study_opens_as_it_was_planned_without_its_model(model, store, monkeypatch):
    """Also after a change that gives its runs other ids."""
    data = study_data(model, 2)
    data["prompts"]["rows"].append({"id": "long", "prompt": "w1 " * 300})
    made = study(parse_study(data), store)
    monkeypatch.setattr("kvq_core.studies.cells.outline", lambda *_: pytest.fail("the model is looked for"))
    opened = kept_plan(made.id, store)
    for cell, own in zip(opened.cells, made.plan.cells, strict=True):  # knobs at their defaults are told or not
        assert replace(cell, spec=own.spec) == own and cell.spec.canonical() == own.spec.canonical()
    assert opened.spec.canonical() == made.plan.spec.canonical()
    assert replace(opened, spec=made.plan.spec, cells=made.plan.cells) == made.plan
    assert stored_study(opened, store).summary() == made.summary()
    monkeypatch.undo()
    other = plan(parse_study(study_data(model, 3)))
    name = f"studies/{made.id}/plan.json"
    write_beside(store, name, read_beside(store, f"studies/{study(other.spec, store).id}/plan.json"))
    assert kept_plan(made.id, store) == opened, "cells of another study are not taken for its own"
    write_beside(store, name, b'{"models": []}')
    assert kept_plan(made.id, store) == opened


@pytest.mark.slow
def test_what_rows_know_is_not_in_the_estimate(model, store):
    """A study goes on from rows alone, as those that ship have them."""
    made = study(parse_study(study_data(model, 2)), store)
    for cell in made.plan.cells:
        shutil.rmtree(Path(store.root) / cell.id)
    assert estimate(made.plan, store=store).todo == 0
    assert study(parse_study(study_data(model, 2)), store).summary() == made.summary()
    assert estimate(plan(parse_study(study_data(model, 3))), store=store).todo == 3


@pytest.mark.slow
def test_rows_of_a_study_at_work_and_of_shards_spare_reading_runs(model, store, monkeypatch):
    """Whoever is killed, or goes on where shards have been, need not read what was summed up."""
    monkeypatch.setattr("kvq_core.studies.study.KEPT_EVERY_S", 0.0)
    monkeypatch.setattr("kvq_core.studies.study.KEEPING", 1e9)
    planned, there = plan(parse_study(study_data(model, 4))), []
    run_plan(planned, store, shard=(1, 2), progress=lambda *told: there.append(len(read_rows(store, planned.id))))
    assert there[-2:] == [0, 1] and len(read_rows(store, planned.id)) == 2, "kept while it was at work"
    monkeypatch.setattr(type(store), "load", lambda self, id: pytest.fail("a run is read"))
    assert run_plan(planned, store, shard=(2, 2)).cells["done"] == 4
    assert run_plan(planned, store).cells["done"] == 4


@pytest.mark.slow
def test_what_is_left_out_and_few_prompts_are_told_once(model, store, tmp_path, monkeypatch, capsys):
    data = study_data(model, 2)
    data["prompts"]["rows"].append({"id": "long", "prompt": "w1 " * 300})
    spec = write_study(tmp_path / "s.json", data)
    assert main(["study", "--spec", str(spec), "--dry-run"]) == 0
    before = capsys.readouterr().out
    assert "2 of them to compute, 1 prompt left out" in before and "\nleft out: long: 300 prompt tokens" in before
    link = before.rpartition("link: ")[2].strip()
    assert main(["study", "--spec", link, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["id"] in before and told["link"] == link, "the same study"
    assert main(["study", "--spec", link[:-9], "--dry-run"]) == 2 and "The link is" in capsys.readouterr().err
    few = describe_study(study(parse_study(study_data(model, 2)), store))
    assert few.count("no lanes are compared: they need 5 prompts or more") == 1 and "too few" not in few
    monkeypatch.setattr("kvq_core.cli.study_text.PAIRS", 0)
    assert "and 1 more pairs of lanes: --json has all." in describe_study(
        study(parse_study(study_data(model, 6)), store)
    )


@pytest.mark.slow
def test_a_damaged_run_is_computed_again(model, store):
    first = study(parse_study(study_data(model, 2)), store)
    file = Path(store.root) / first.plan.cells[0].id / "record.json"
    file.write_bytes(file.read_bytes()[:-9])
    (Path(store.root) / "studies" / first.id / "rows").unlink()
    again = study(parse_study(study_data(model, 2)), store)
    assert again.cells["done"] == 2 and store.load(first.plan.cells[0].id)


@pytest.mark.slow
def test_a_cell_opens_as_a_full_run(model, store):
    result = study(parse_study(study_data(model, 1)), store)
    record = result.open("p0", store=store)
    assert record.capture.detail == "normal" and record.lanes[0].token_ids and store.exists(record.id)
    with pytest.raises(SpecError, match="No cell of this study has the prompt 'p9'"):
        result.open("p9", store=store)


@pytest.mark.slow
def test_prompts_over_the_context_are_left_out_and_told(model, store):
    data = study_data(model, 3)
    data["prompts"]["rows"].append({"id": "long", "prompt": prompt(1, 300)})
    result = study(parse_study(data), store)
    assert result.cells == {"total": 3, "done": 3, "failed": 0, "left_out": 1}
    told = result.summary()
    assert told["left_out"][0]["prompt"] == "long" and "256 tokens of context" in told["left_out"][0]["why"]
    assert any("they need 5 prompts" in note for note in told["notes"])
    assert all(lane["kld_low"] is None for lane in told["lanes"])
    data["prompts"]["rows"] = data["prompts"]["rows"][-1:]
    with pytest.raises(SpecError, match="None of the prompts can be run. The first: 300 prompt tokens"):
        plan(parse_study(data))


@pytest.mark.slow
def test_prompts_asked_twice_are_one_run_and_two_samples(model, store):
    data = study_data(model, 2)
    data["prompts"]["rows"].append({"id": "again", "prompt": prompt(0)})
    result = study(parse_study(data), store)
    assert result.cells["done"] == 3 and len({cell.id for cell in result.plan.cells}) == 2


@pytest.mark.slow
def test_a_store_that_takes_nothing_more_stops_the_study_and_loses_nothing(model, store, monkeypatch):
    from kvq_core.record.layouts import Folders

    put, left = Folders.put, [2]

    def limited(self, *given):
        if not left[0]:
            raise OSError(30, "Read-only file system")
        left[0] -= 1
        put(self, *given)

    monkeypatch.setattr(Folders, "put", limited)
    spec = parse_study(study_data(model, 4))
    with pytest.raises(StoreError, match="Read-only file system. The study stops here"):
        study(spec, store)
    assert len(present_in(store, [cell.id for cell in plan(spec).cells])) == 2
    monkeypatch.setattr(Folders, "put", put)
    assert study(spec, store).cells["done"] == 4


def test_a_model_that_is_not_here_is_said_in_a_line(store, tmp_path):
    from kvq_core.errors import ModelError

    with pytest.raises(ModelError, match="not a model directory"):
        study(parse_study(study_data(tmp_path / "nowhere", 2)), store)


@pytest.mark.slow
def test_the_parquet_file_has_a_row_a_lane(model, store, tmp_path):
    import pandas as pd

    result = study(parse_study(study_data(model, 2)), store)
    result.write_parquet(tmp_path / "rows.parquet")
    table = pd.read_parquet(tmp_path / "rows.parquet")
    assert len(table) == 4 and set(table["lane"]) == {"four", "two"}
    assert len(table["kld"][0]) == table["scored"][0] == len(table["structural"][0])


@pytest.mark.slow
def test_followed_tokens_are_those_that_are_scored(model, store):
    """The last of the reference's tokens, as many as are scored: greedily, each is the most probable one."""
    result = study(parse_study(study_data(model, 1)), store)
    record, arrays = store.load(result.plan.cells[0].id)
    ids = arrays["reference/topk_ids"][:, 0].tolist()
    assert record.reference.token_ids[-len(ids) :] == ids


@pytest.mark.slow
def test_two_models_of_one_title_are_told_apart(store, tmp_path):
    folders = [write_model(tmp_path / name / "tiny", seed=at) for at, name in enumerate("ab")]
    data = study_data(folders[0], 2, models=[str(folder) for folder in folders])
    result = study(parse_study(data), store)
    one, other = dict.fromkeys(line["model"] for line in result.lines)
    assert one == "tiny" and other.startswith("tiny (dir:")
    assert {line["prompts"] for line in result.lines} == {2} and describe_study(result)


def test_one_model_under_two_names_is_not_counted_twice(model, tmp_path):
    again = tmp_path / "again"
    again.symlink_to(model)
    with pytest.raises(SpecError, match=rf"'{model}' and '{again}' are one model, dir:\w+; give it once\."):
        plan(parse_study(study_data(model, 2, models=[str(model), str(again)])))


def test_an_answer_that_cannot_be_judged_by_is_told_before_anything_is_computed(model):
    rows = [{"prompt": prompt(0), "id": "sum", "answer": "abc", "verifier": "number"}]
    with pytest.raises(SpecError, match=r"prompt 'sum': verifier number: answer = 'abc' is not allowed"):
        plan(parse_study({**study_data(model, 1), "prompts": {"rows": rows}}))
    rows = [{"messages": [{"role": "user", "content": "Who?"}], "id": "who"}]
    with pytest.raises(SpecError, match="system is given beside prompt 'who'"):
        plan(parse_study({**study_data(model, 1), "chat": True, "system": "Be brief.", "prompts": {"rows": rows}}))


@pytest.mark.slow
def test_an_answer_of_one_token_is_judged_though_it_has_no_kld(model, store):
    rows = [{"prompt": prompt(at), "answer": "no such answer", "verifier": "contains"} for at in range(2)]
    data = {**study_data(model, 2), "prompts": {"rows": rows}, "max_new_tokens": 1}
    result = study(parse_study(data), store)
    assert result.table["kld_mean"].isna().all() and result.table["correct"].notna().all()
    judged = result.table.assign(reference_correct=True, correct=[True, None] * (len(result.table) // 2))
    lines = {line["label"]: (line["right"], line["counted"]) for line in task_lines(judged) if not line["group"]}
    assert set(lines.values()) <= {(1.0, 2), (None, 0), (1.0, 1)}, "what failed has said nothing that could be judged"


def test_the_slope_of_kld_over_the_steps_of_long_answers():
    rise = [0.01 + (0.002 + 1e-4 * at) * np.arange(300) / 1000 for at in (-5, -3, -1, 1, 3, 5)]
    told = _slope(pd.DataFrame({"kld": [*rise, np.ones(8)]}))
    assert (
        told["kld_slope"] == pytest.approx(0.002) and told["kld_slope_low"] < 0.0019 < 0.0021 < told["kld_slope_high"]
    )
    assert _slope(pd.DataFrame({"kld": [np.ones(8)]})) == dict.fromkeys(told)


def test_a_place_that_takes_no_result_is_told_before(model, store, tmp_path, capsys):
    spec = write_study(tmp_path / "study.json", study_data(model, 2))
    for place in (tmp_path, tmp_path / "rows.csv"):
        assert main(["study", "--spec", str(spec), "--out", str(place)]) == 2
        assert "is not a place for the result; give a file that ends in .parquet" in capsys.readouterr().err
    assert not present_in(store, [cell.id for cell in plan(parse_study(study_data(model, 2))).cells])
    with pytest.raises(SpecError, match="Cannot write /proc/x.parquet"):
        write_out(Path("/proc/x.parquet"), lambda file: file.write_bytes(b""))
