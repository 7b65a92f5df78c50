"""The fewest bits of each family within a loss."""

import argparse
import json
import re

from kvq_core.analysis.within import LOSSES, fewest
from kvq_core.cli.comparison import losses
from kvq_core.cli.tables import describe_record
from tests.support.ui_record_factory import make_run
from ui.html.within import within_html, within_rows


def run_of(*lanes):
    """A run whose lanes are (method, knobs, bits, mean KLD)."""
    record, _ = make_run(len(lanes))
    spec = []
    for lane, (method, knobs, bits, kld) in zip(record.lanes, lanes, strict=True):
        lane.memory = lane.memory.model_copy(update={"key_bits": bits, "value_bits": bits})
        lane.metrics = lane.metrics.model_copy(update={"kld_mean": kld})
        spec.append({"label": lane.label, "method": method, "knobs": knobs})
    record.spec = {**record.spec, "lanes": spec}
    return record


def test_of_each_family_the_fewest_bits_within_each_loss():
    record = run_of(
        ("kivi", {"bits": 8}, 9.0, 0.0005),
        ("kivi", {"bits": 4}, 5.0, 0.004),
        ("kivi", {"bits": 2}, 3.0, 0.3),
        ("q8_0", {}, 8.5, 0.0005),
        ("q4_0", {}, 4.5, 0.02),
        ("per_token", {}, 4.5, 0.001),
    )
    found = fewest(record)
    assert set(found) == {"KIVI", "llama.cpp"}  # one width of per token is nothing to choose from
    assert [kept and kept.bits for kept in found["KIVI"]] == [9.0, 5.0, 5.0]
    assert [kept and kept.bits for kept in found["llama.cpp"]] == [8.5, 8.5, 4.5]
    assert LOSSES == (0.001, 0.01, 0.1)
    html = within_html(record)
    assert html.count("<tr>") == 3 and ">9 bits<" in html and record.lanes[1].label in html
    assert [row[1:4] for row in within_rows(record)][:2] == [["KIVI", 0.001, 9.0], ["KIVI", 0.01, 5.0]]


def test_a_terminal_shows_the_loss_that_was_asked_for(tmp_path):
    record = run_of(("kivi", {"bits": 4}, 5.0, 0.004), ("kivi", {"bits": 2}, 3.0, 0.02))
    file = tmp_path / "spec.json"
    for given, told in (({"name": "equal-loss", "kld": 0.03}, [0.03]), ("equal-loss", []), ("deploy", [])):
        file.write_text(json.dumps({"prompt": "p", "bundle": given}))
        asked = losses(argparse.Namespace(spec=file, preset=None, bundle=None))
        assert asked == tuple(sorted([*LOSSES, *told]))
    asked = losses(argparse.Namespace(spec=file, preset=None, bundle="equal-loss:0.03"))
    lines = describe_record(record, {}, asked).splitlines()
    head, row = (next(line for line in lines if line.startswith(first)) for first in ("fewest", "KIVI  "))
    assert re.findall(r"([0-9.]+) nats", head) == ["0.001", "0.01", "0.03", "0.1"]
    assert re.findall(r"none|\d\.\d\d", row) == ["none", "5.00", "3.00", "3.00"]


def test_a_loss_nobody_reaches_is_said_and_a_run_without_families_has_no_table():
    record = run_of(("kivi", {"bits": 4}, 5.0, 0.4), ("kivi", {"bits": 2}, 3.0, 2.0))
    assert fewest(record) == {"KIVI": [None, None, None]} and within_html(record).count("none here") == 3
    record.lanes[0].metrics = None  # it failed
    assert fewest(record) == {} and within_html(record) == ""
