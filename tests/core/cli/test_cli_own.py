"""``--method-file`` and ``check-method``: what they print, and their exit status."""

import json
import re

import pytest

from kvq_core.cli import main as cli_main
from kvq_core.cli.main import main
from kvq_core.cli.tables import describe_record
from kvq_core.packed import contract
from kvq_core.record.events import Finished
from kvq_core.settings import settings
from tests.support.own_methods import PAGE, example, forget_afterwards, written


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    forget_afterwards(monkeypatch)
    monkeypatch.setattr(contract, "HEADS", (64,))


@pytest.fixture
def here(capfd):
    """Status, what was printed, and what was said beside it."""

    def call(*arguments):
        capfd.readouterr()
        return main(list(map(str, arguments))), *capfd.readouterr()

    return call


@pytest.mark.slow
def test_a_method_that_keeps_the_contract_is_status_0(here, tmp_path):
    status, out, err = here("check-method", "--method-file", written(tmp_path))
    assert status == 0 and err == ""
    lines = out.splitlines()
    assert lines[0] == "mine: ok   described: 0 knobs" and all(line.startswith("mine: ") for line in lines)
    assert "mine: skip packed: mine (my.py): Halves has no packed execution" in out and "FAIL" not in out


def test_one_that_does_not_is_status_1_and_named(here, tmp_path):
    status, out, err = here("check-method", "mine", "--method-file", written(tmp_path, bits=3), "--json")
    assert status == 1 and err == ""
    failed = [check for check in json.loads(out)["mine"] if check["outcome"] == "FAIL"]
    assert [check["name"] for check in failed] == ["fits"]
    assert "mine (my.py): claims 3 bits an element where its tensors take 16" in failed[0]["said"]


@pytest.mark.parametrize("command", [["methods"], ["check-method"], ["compare", "--preset", "first-look"]])
def test_a_file_that_cannot_be_loaded_is_one_line_and_status_2(here, tmp_path, command):
    status, out, err = here(*command, "--method-file", written(tmp_path, top="1 / 0"))
    assert (status, out) == (2, "")
    assert err == "error: my.py cannot be loaded: line 5: ZeroDivisionError: division by zero\n"


def test_check_method_wants_to_know_which(here):
    status, out, err = here("check-method")
    assert (status, out) == (2, "") and "--method-file" in err
    status, _, err = here("check-method", "kvi")
    assert status == 2 and "Did you mean 'kivi'" in err


def test_methods_of_files_are_listed_with_their_file(here, tmp_path):
    one, two = written(tmp_path), written(tmp_path, "other.py", name="other")
    status, out, _ = here("methods", "--method-file", one, "--method-file", two)
    assert status == 0 and "mine - Mine  (my.py)\n  Halves." in out and "other - Mine  (other.py)" in out


def test_the_environment_names_files_too(here, tmp_path, monkeypatch):
    one, two = written(tmp_path), written(tmp_path, "other.py", name="other")
    monkeypatch.setenv("KVQ_METHOD_FILES", f"{one}::{two}")
    assert settings().method_files == (one, two)
    listed = [method["name"] for method in json.loads(here("methods", "--json")[1])]
    assert {"mine", "other", "kivi"} <= set(listed) and listed == sorted(listed)


def test_compare_takes_a_lane_of_a_file(here, tmp_path, monkeypatch, sample_run):
    record, arrays = sample_run()
    asked = []
    monkeypatch.setattr(cli_main, "_run", lambda spec: asked.append(spec) or Finished(record, arrays))
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"prompt": "Tides.", "lanes": [{"method": "mine"}]}))
    assert here("compare", "--spec", spec)[0] == 2  # nobody has named the file
    assert here("compare", "--spec", spec, "--method-file", written(tmp_path))[0] == 0
    assert [lane.title for lane in asked[0].lanes] == ["Mine"]


@pytest.mark.real_model
def test_the_commands_of_the_page_do_what_it_says(here, tmp_path, monkeypatch, smollm):
    monkeypatch.chdir(tmp_path)
    for name in ("one_bit.py", "one_bit.toml"):
        (tmp_path / name).write_text(example(name))
    block = PAGE.read_text(encoding="utf-8").split("Check it, list it")[1].split("```sh\n")[1].split("```")[0]
    commands = [line.split()[3:] for line in block.strip().splitlines()]
    assert [command[0] for command in commands] == ["check-method", "methods", "compare"]
    said = [here(*command) for command in commands]
    assert [status for status, *_ in said] == [0, 0, 0]
    assert "FAIL" not in said[0][1] and "one_bit - One bit  (one_bit.py)" in said[1][1]
    assert re.search(r"^One bit +\d", said[2][1], re.M) and "One bit: from one_bit.py, sha256" in said[2][1]


def test_declared_bits_have_a_star_and_a_line_that_says_what_it_is(sample_run):
    record, arrays = sample_run()
    assert "*" not in describe_record(record, arrays)
    record.lanes[1].memory.bytes_by_part = {"key_declared": 10, "value_codes": 5}
    told = describe_record(record, arrays)
    row = next(line for line in told.splitlines() if line.startswith("SQuat"))
    assert row.split()[1].endswith("*") and row.split()[2].endswith("*")
    assert "*: bits declared by the method's author, not counted" in told
