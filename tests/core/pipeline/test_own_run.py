"""Lanes of one's own in a comparison on a tiny model, and the stored run once their file is gone."""

from hashlib import sha256

import pytest

import kvq_core
from kvq_core.analysis.context_growth import growths
from kvq_core.analysis.explain import explain
from kvq_core.analysis.two_runs import versus
from kvq_core.cli.tables import describe_record
from kvq_core.errors import SpecError
from kvq_core.methods import load_method_file, methods
from kvq_core.models import LoadedModel
from kvq_core.pipeline.compare import compare
from kvq_core.record.events import Finished
from kvq_core.record.store import open_store
from kvq_core.spec import parse_spec
from tests.support.own_methods import example, forget_afterwards, written
from tests.support.tiny_models import tiny
from ui.export.reproduce import command
from ui.form.filling import form_of
from ui.html.cards import lane_head
from ui.html.tables import scorecard
from ui.views.verdicts import compute as draw_verdicts

PROMPT = "Tell me about the harbour. " + "It keeps its tide tables by hand and the gauge has a paper drum. " * 6


@pytest.fixture(scope="module")
def stored(smollm: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run of a file's method, a function, three methods that fail somewhere, and one of the project; from
    its store."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        forget_afterwards(patch)
        model = tiny("llama", tokenizer=smollm.tokenizer)
        patch.setattr("kvq_core.pipeline.compare.load", lambda *_: model)
        (folder / "one_bit.py").write_text(example("one_bit.py"))
        load_method_file(folder / "one_bit.py")
        load_method_file(written(folder, fit="raise ValueError('no')"))
        late = (
            "return Fitted(Halves(), Halves(), select=lambda layer, q, tokens: q.new_ones(2, tokens) > tokens // 150)"
        )
        load_method_file(written(folder, "late.py", name="late", fit=late))
        odd = "Halves.usage = lambda self, blocks: {'outlier_share': torch.full((3, 5), torch.nan)}"
        load_method_file(written(folder, "odd.py", name="odd", fit=odd))
        lane = kvq_core.from_function(lambda k, v: (k.half(), v.half()), bits=(5, 4), name="declared")
        lanes = [{"method": "one_bit", "knobs": {"window": 8}}, lane, {"method": "mine"}, {"method": "kivi"}]
        lanes += [{"method": "late"}, {"method": "odd"}]
        spec = parse_spec({"prompt": PROMPT, "max_new_tokens": 52, "ignore_eos": True, "lanes": lanes})
        store = open_store(f"file://{folder}/store")
        *_, finished = compare(spec, store)
        assert isinstance(finished, Finished) and not finished.unkept
        *_, again = compare(spec, store)
        assert isinstance(again, Finished) and again.reused and again.record.id == finished.record.id
    record, arrays = store.load(finished.record.id)
    return Finished(record, arrays)


@pytest.mark.real_model
def test_own_lanes_run_beside_others_and_fail_alone(stored: Finished) -> None:
    own, declared, failed, kivi, late, odd = stored.record.lanes
    assert [lane.status for lane in stored.record.lanes] == ["done", "done", "failed", "done", "failed", "done"]
    assert late.error == "select left a KV head no key to read" and len(late.token_ids) > 1
    assert odd.notes[-1] == (
        "how values use their codes is not shown: usage gave outlier_share of shape (3, 5) for 3 layers and 2 KV heads"
    )
    assert failed.error == "mine (my.py): ValueError: no"
    assert own.memory is not None and own.memory.key_bits_quantized == 1.5 and not own.memory.declared
    assert own.title == "One bit" and own.knobs == {"window": 8}
    assert declared.memory is not None and declared.memory.declared
    assert (declared.memory.key_bits_quantized, declared.memory.value_bits_quantized) == (5, 4)
    assert declared.notes == ["K5 V4 bits declared, not counted", "from a function"]
    assert declared.notes[0] == declared.summary
    assert own.notes == [f"from one_bit.py, sha256 {sha256(example('one_bit.py').encode()).hexdigest()[:12]}"]
    assert own.metrics is not None and declared.metrics is not None and kivi.metrics is not None
    floor = stored.record.noise_floor.metrics
    assert floor is not None and declared.metrics.kld_mean == pytest.approx(floor.kld_mean, rel=0.5)
    assert own.metrics.kld_mean > kivi.metrics.kld_mean > declared.metrics.kld_mean


@pytest.mark.real_model
def test_a_stored_run_opens_without_the_file(stored: Finished) -> None:
    record, arrays = stored.record, stored.arrays
    assert not {"one_bit", "declared", "mine"} & set(methods())
    with pytest.raises(SpecError, match="Unknown method 'one_bit'"):
        parse_spec(record.spec)
    assert "One bit" in describe_record(record, arrays)
    told = [explain(record, arrays, at) for at in (0, 1)]
    assert all(each.sentences for each in told) and told[0].suggestion is None
    assert "One bit" in draw_verdicts(record, arrays, None).html["verdicts"]
    assert "5 / 4*" in lane_head(record, arrays, 1) and "Bits declared, not counted" in lane_head(record, arrays, 1)
    assert [row["lane"] for row in scorecard(record, arrays)][2] == "declared (bits declared)"
    assert growths(record)
    assert versus(record, record)
    assert '"one_bit"' in command(record)
    assert form_of(record.spec)  # the first preset, in place of lanes that nobody can build
