"""The reference table: what ships, its quick form, its Markdown, and the check of a submitted one."""

import json
from pathlib import Path

import pytest

from kvq_core.cli import main as cli
from kvq_core.cli.table_text import table_markdown
from kvq_core.errors import ModelError, StoreError
from kvq_core.methods import methods
from kvq_core.models import outline
from kvq_core.models.gguf.published import SECOND_MODEL
from kvq_core.record.store import open_store
from kvq_core.sizing.count import CacheAt, PlannedCache
from kvq_core.spec import DEFAULT_MODEL, MAX_LANES
from kvq_core.studies import table
from kvq_core.studies.cells import plan
from kvq_core.studies.spec import parse_study, read_study
from kvq_core.studies.study import study
from tests.support.study_models import study_data, write_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> dict:
    """A study of 25 prompts on a tiny model, as the table has them."""
    lanes = [
        {"method": "per_token", "label": "Per token 4", "knobs": {"bits": 4}},
        {"method": "per_token", "label": "4 + 64: Per token 2", "knobs": {"bits": 2}},
    ]
    return study_data(write_model(tmp_path_factory.mktemp("models") / "tiny"), 25, lanes=lanes, max_new_tokens=3)


@pytest.fixture(scope="module")
def done(tiny, tmp_path_factory):
    store = open_store(str(tmp_path_factory.mktemp("table")))
    return study(parse_study(tiny), store), store


def test_what_ships_has_every_method_and_the_kinds_of_prompts():
    spec = read_study(table.FILE)
    prompts, broken = spec.prompts.read()
    kinds = [prompt.group for prompt in prompts]
    assert len(prompts) == 12 and not broken
    assert all(kinds.count(kind) >= 2 for kind in ("prose", "code", "chat", "long", "tools"))
    lanes = spec.comparison.lanes
    assert set(methods()) - {lane.method for lane in lanes} == {"fp16"}, "which is the floor of every run"
    assert len(lanes) <= MAX_LANES and len({lane.label for lane in lanes}) == len(lanes)
    assert set(spec.models) == {DEFAULT_MODEL, SECOND_MODEL}
    assert {table.setting(lane.label)[0] for lane in lanes} == set(table.SETTINGS.values())


def test_the_quick_table_has_a_prompt_of_each_kind_and_every_method_once():
    quick = table.table_spec(quick=True, model="some/model")
    prompts, lanes = quick.prompts.read()[0], quick.comparison.lanes
    assert [prompt.group for prompt in prompts] == ["prose", "code", "chat", "tools", "long"]
    assert len(lanes) == len({lane.method for lane in lanes}) == len(methods()) - 1
    assert quick.models == ("some/model",) and quick.comparison.max_new_tokens == table.QUICK_TOKENS


def test_only_models_that_are_here_are_in_it(monkeypatch):
    monkeypatch.setattr(table, "available_models", list)
    with pytest.raises(ModelError, match="None of .* is on this machine"):
        table.table_spec()


@pytest.mark.real_model
@pytest.mark.parametrize("model", [DEFAULT_MODEL, pytest.param(SECOND_MODEL, marks=pytest.mark.second_model)])
def test_every_prompt_has_500_tokens_on_both_models(model):
    cells = plan(table.table_spec(model=model)).cells
    assert len(cells) == 12 and all(cell.tokens >= 500 for cell in cells)


@pytest.mark.real_model
@pytest.mark.parametrize("model", [DEFAULT_MODEL, pytest.param(SECOND_MODEL, marks=pytest.mark.second_model)])
def test_lanes_at_matched_bytes_store_as_much_over_its_prompts_on_both_models(model):
    spec, shape = table.table_spec(model=model), outline(model).shape
    later = spec.comparison.max_new_tokens - 1
    held = [CacheAt(shape, cell.tokens, cell.tokens + later) for cell in plan(spec).cells]
    matched = [lane for lane in spec.comparison.lanes if table.setting(lane.label)[0] == "matched bytes"]
    bits = {
        lane.label: sum(PlannedCache(lane, at.shape).bits(at.prompt, at.tokens) for at in held) / len(held)
        for lane in matched
    }
    assert len(bits) == 12
    assert {label: each for label, each in bits.items() if not 4.1 < each < table.MATCHED_BITS * 1.02} == {}


def test_its_figures_are_the_studys_and_its_cells_open_runs(done):
    result, _ = done
    drawn = table_markdown(result, "http://here")
    line = result.summary()["lanes"][1]
    row = next(text for text in drawn.splitlines() if text.startswith("| Per token 2"))
    assert f"{line['kld_mean']:.3g} | {line['kld_low']:.3g} to {line['kld_high']:.3g}" in row
    assert drawn.index("#### Matched windows") < drawn.index("| Per token 2") < drawn.index("#### As shipped")
    for cell in result.plan.cells:
        assert drawn.count(f"(http://here/?run={cell.id})") == 3, "a prompt's head, and both lanes"


def test_a_submitted_table_is_computed_again_in_part(done):
    result, store = done
    found = list(table.check_cells(result.plan, store))
    assert len(found) == 2 and all(each.why is None and each.apart < table.SMALL for each in found)
    assert {each.run for each in found} < {cell.id for cell in result.plan.cells}


def less_kld(record, arrays):
    return record, {**arrays, "lane/0/kld": arrays["lane/0/kld"] * 0.4}


def fewer_bytes(record, arrays):
    memory = record.lanes[0].memory
    memory = memory.model_copy(update={"kv_ratio": memory.kv_ratio * 0.9})
    lanes = [record.lanes[0].model_copy(update={"memory": memory}), *record.lanes[1:]]
    return record.model_copy(update={"lanes": lanes}), arrays


def all_a_tenth_less(record, arrays):
    return record, {name: x * 0.9 if name.endswith("/kld") else x for name, x in arrays.items()}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (less_kld, "Per token 4: a mean KLD of"),
        (fewer_bytes, "% of the bytes, and"),
        (all_a_tenth_less, "half of the lanes' KLD are 10% off or more"),
    ],
)
def test_a_figure_that_was_changed_is_found(done, tmp_path, change, told):
    """By the cell that is computed again; the checksum of what was changed is right."""
    result, store = done
    other = open_store(str(tmp_path / "submitted"))
    picked = {cell.id for cell in table.sampled_cells(result.plan)}
    for cell in result.plan.cells:
        record, arrays = store.load(cell.id)
        if cell.id in picked:
            record, arrays = change(record, arrays)
        other.save(record, arrays)
    assert all(told in each.why for each in table.check_cells(result.plan, other))
    other.layout.remove(result.plan.cells[3].id)
    with pytest.raises(StoreError, match="Prompt 'p3' of .* is not in this store"):
        list(table.check_cells(result.plan, other))


def test_the_command_draws_what_is_stored_and_checks(done, tiny, tmp_path, monkeypatch, capsys):
    result, store = done
    monkeypatch.setattr(table, "FILE", tmp_path / "study.json")
    table.FILE.write_text(json.dumps(tiny))
    monkeypatch.setenv("KVQ_STORE", store.root)
    model = ["--model", tiny["models"][0]]
    out = tmp_path / "table.md"
    assert cli.main(["table", "--stored", "--out", str(out), *model]) == 0
    assert out.read_text() == capsys.readouterr().out.rstrip("\n") + "\n" and f"`{result.id}`" in out.read_text()
    assert cli.main(["table", "--check", store.root, *model]) == 0
    assert capsys.readouterr().out.count("agrees") == 2
    assert Path(store.root, "studies", result.id, "study.json").is_file()
