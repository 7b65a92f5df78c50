"""A stressed run beside the same comparison without stress."""

import re

import pytest

from kvq_core.presets import presets
from kvq_core.record.fields import StressRecord
from kvq_core.record.store import open_store
from kvq_core.spec import Stress
from kvq_core.spec.links import decode
from tests.support.ui_record_factory import make_run
from ui.panels.twin import twin, twin_html
from ui.service.services import Services

STRESS = {**Stress().model_dump(mode="json"), "key_outlier_scale": 8.0}


def run(id: str, stressed: bool, **changes):
    """A stored kind of run of the stress preset's comparison."""
    record, _ = make_run(2)
    spec = {**record.spec, **({"stress": STRESS} if stressed else {}), **changes}
    if stressed:
        record.stress = StressRecord(
            settings=STRESS,
            layers=[0],
            kv_heads=[0],
            pairs=[],
            positions=32,
            kld_max=1e-7,
            logit_max=0.0,
            tolerance=1e-4,
            same_tokens=True,
            sentence="It does not change.",
        )
        record.lanes[1].metrics.kld_mean = 0.9
    return record.model_copy(update={"id": id * 16, "spec": spec})


@pytest.fixture
def services(tmp_path):
    return Services(open_store(str(tmp_path)), None, None)


def kept(services, *records):
    for record in records:
        services.store.save(record, {})
    return records[0]


def test_each_of_two_twins_finds_the_other(services):
    stressed, plain = run("a", True), run("b", False)
    kept(services, stressed, plain)
    assert twin(stressed, services, []).id == plain.id and twin(plain, services, []).id == stressed.id
    for record, other in ((stressed, plain), (plain, stressed)):
        html = twin_html(record, other)
        rows = [re.findall("<td>(.*?)</td>", row) for row in html.split("<tr>")[2:]]
        assert rows == [["0.20", "0.20", "11 %", "11 %"], ["0.20", "0.90", "11 %", "11 %"]]
        assert "Stress moves Lane 1 furthest: mean KLD 0.20 without, 0.90 with it." in html
        assert f'href="?run={record.id}&amp;vs={other.id}"' in html


@pytest.mark.parametrize(
    "changes", [{"seed": 7}, {"max_new_tokens": 9}, {"stress": {**STRESS, "key_bias": 2.0}}], ids=str
)
def test_what_differs_in_more_is_no_twin(services, changes):
    stressed = kept(services, run("a", True), run("b", "stress" in changes, **changes))
    assert twin(stressed, services, []) is None


def test_a_private_run_of_somebody_else_is_no_twin(services, monkeypatch):
    stressed = kept(services, run("a", True), run("b", False))
    monkeypatch.setattr("kvq_core.record.sharing.reach", lambda store, run_id: "private")
    assert twin(stressed, services, []) is None


def test_without_its_twin_a_stressed_run_says_how_to_get_it():
    record = run("a", True)
    record.spec.update(presets()["stress-outliers"].spec.model_dump(mode="json"))
    html = twin_html(record, None)
    spec = decode(re.search(r'href="\?c=(.*?)"', html)[1])
    asked = presets()["stress-outliers"].spec
    assert spec.canonical() == asked.model_copy(update={"stress": Stress()}).canonical() != asked.canonical()
    assert twin_html(run("b", False), None) == ""
    record.spec["prompt"] = "".join(chr(0x4E00 + i * 7 % 20_000) for i in range(9000))
    assert "switch stress off in the form" in twin_html(record, None)
