"""The command line: what it prints where, and with which exit status.

Whatever depends on the process (warnings on stderr, signals, imports) runs in one of its own; the long tables of
mistakes call ``main`` here, since every new process imports torch first.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvq_core.claims.board import stored_board
from kvq_core.cli.main import main
from kvq_core.cli.tables import describe_record
from kvq_core.engine.decode import Decode
from kvq_core.errors import StoreError
from kvq_core.events import Finished
from kvq_core.methods import methods
from kvq_core.presets import presets
from kvq_core.spec import DEFAULT_MODEL
from kvq_core.store.store import open_store, read_run, record_json
from tests.support.tiny_models import tiny

ROOT = Path(__file__).parents[3]
PROMPT = "Tell me about tides. " + "The sea came up the channel, pushed open the gates and filled the pond. " * 5
SPEC = {
    "prompt": PROMPT,
    "max_new_tokens": 6,
    "lanes": [{"label": "kivi2", "method": "kivi"}, {"label": "pt8", "method": "per_token", "knobs": {"bits": 8}}],
}


def cli(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvq_core", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **env},
        timeout=200,
    )


@pytest.fixture
def here(capfd):
    """``main`` in this process, with its output as a subprocess would give it."""

    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as left:  # --help
            status = int(left.code or 0)
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, status, out, err)

    return call


def refused(result: subprocess.CompletedProcess[str], *named: str) -> None:
    """Status 2, nothing on stdout, one line on stderr naming what it should."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1 and len(result.stderr) < 600, result.stderr
    assert result.stderr.strip().isprintable()
    for word in named:
        assert word in result.stderr


@pytest.fixture
def spec_file(tmp_path):
    def write(data, name="spec.json"):
        file = tmp_path / name
        file.write_text(data if isinstance(data, str) else json.dumps(data))
        return file

    return write


@pytest.mark.parametrize("command", [(), ("methods",), ("presets",), ("compare",), ("show",)])
def test_help_has_examples(here, command):
    result = here(*command, "--help")
    assert result.returncode == 0 and result.stderr == ""
    assert "examples:\n  python -m kvq_core" in result.stdout


def test_methods_as_json_describe_every_knob(here):
    listed = json.loads(here("methods", "--json").stdout)
    assert [m["name"] for m in listed] == list(methods())
    for method in listed:
        assert set(method) == {"name", "title", "paper", "doc", "deviations", "knobs"}
        assert method["doc"] and isinstance(method["deviations"], list)
        for knob in method["knobs"]:
            assert set(knob) == {
                "name",
                "title",
                "type",
                "default",
                "minimum",
                "maximum",
                "length",
                "pattern",
                "choices",
                "named",
                "fields",
                "nullable",
                "help",
            }
            assert knob["help"], f"{method['name']}.{knob['name']} explains nothing"
    told = {m["name"]: {k["name"]: k for k in m["knobs"]} for m in listed}
    schedule, kivi = told["svdq"]["schedule"], told["kivi"]
    assert (schedule["length"], schedule["minimum"], schedule["maximum"]) == (8, 0, 8)
    assert told["commvq"]["codebooks"]["pattern"].startswith("^[A-Za-z0-9]")
    assert kivi["bits"]["default"] == 2 and kivi["bits"]["choices"] == [1, 2, 3, 4, 8]
    assert (kivi["sink_tokens"]["minimum"], kivi["sink_tokens"]["type"]) == (0, "integer")
    assert kivi["key_bits"]["nullable"] and kivi["key_bits"]["default"] is None


def test_methods_for_people_name_every_method_and_knob(here):
    text = here("methods").stdout
    for name, cls in methods().items():
        assert name in text and cls.title in text
        assert all(knob in text for knob in cls.model_fields)


def test_presets_in_both_forms(here):
    listed = json.loads(here("presets", "--json").stdout)
    assert [p["name"] for p in listed] == list(presets())
    assert all(p["spec"]["lanes"] and p["look_at"] for p in listed)
    text = here("presets").stdout
    assert all(name in text for name in presets())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), ["COMMAND"]),
        (("bogus",), ["bogus", "compare"]),
        (("methods", "--jsn"), ["--jsn"]),
        (("compare",), ["--preset", "--spec"]),
        (("compare", "--preset", "a", "--spec", "b"), ["--preset", "--spec"]),
        (("compare", "--preset", "frist-look"), ["frist-look", "first-look", "needle"]),
        (("compare", "--spec", "/nowhere/spec.toml"), ["/nowhere/spec.toml"]),
        (("compare", "--spec", "tests"), ["tests"]),
        (("show",), ["RUN_ID"]),
        (("show", "0" * 16), ["0" * 16, "not in this store"]),
        (("show", "zz"), ["zz", "16 hexadecimal"]),
        (("show", "../../etc"), ["../../etc", "manifest.json"]),
        (("show", "tests"), ["tests", "manifest.json"]),
        (("show", "\n\x1b[2J'; rm -rf"), ["16 hexadecimal"]),
        (("show", "\n\x1b[2J'; rm -rf /"), ["manifest.json"]),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_one_line_and_status_2(here, arguments, named):
    refused(here(*arguments), *named)


@pytest.mark.slow
def test_the_same_in_a_process_of_its_own(tmp_path, spec_file):
    lanes = [{"method": "kivi", "knobs": {"bits": 5}}]
    refused(cli("compare", "--spec", spec_file({**SPEC, "lanes": lanes}), "--out", tmp_path / "out"), "bits", "5")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"lanes": [{"method": "kivi"}] * 65}, ["65", "64"]),
        ({"lanes": [{"method": "kvi"}]}, ["kvi", "Did you mean 'kivi'"]),
        ({"lanes": [{"method": "kivi", "knobs": {"bits": 5}}]}, ["bits", "5", "1, 2, 3, 4, 8"]),
        ({"lanes": [{"method": "kivi", "layers": [30]}]}, ["30", "29"]),
        ({"prompt": ""}, ["empty"]),
        ({"prompt": "word " * 9000}, ["8192", "shorten"]),
        ({"model": "../../etc/passwd"}, ["../../etc/passwd"]),
        ({"model": "a/b/../c"}, ["a/b/../c"]),
        ({"model": "<img src=x onerror=alert(1)>"}, ["not valid"]),
        ({"modle": "x"}, ["modle", "model"]),
    ],
    ids=lambda v: str(v)[:40],
)
def test_impossible_comparisons_leave_nothing_behind(here, tmp_path, spec_file, change, named):
    out = tmp_path / "out"
    refused(here("compare", "--spec", spec_file({**SPEC, **change}), "--out", out, "--json"), *named)
    assert not out.exists() and not (tmp_path / "store").exists()


def test_an_out_that_cannot_be_is_refused_before_the_run(here, tmp_path, spec_file):
    (tmp_path / "file").write_text("x")
    refused(here("compare", "--spec", spec_file(SPEC), "--out", tmp_path / "file"), "not a folder")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("unkept", ["", "Cannot store run 0123456789abcdef: No space left on device."])
def test_what_was_computed_is_printed_where_out_cannot_be_written(
    here, tmp_path, spec_file, sample_run, monkeypatch, unkept
):
    record, arrays = sample_run()

    def fails(folder, *_):
        raise StoreError(f"Cannot write to {folder}: No space left on device.")

    monkeypatch.setattr("kvq_core.cli.main._run", lambda spec: Finished(record, arrays, unkept=unkept))
    monkeypatch.setattr("kvq_core.store.store.write_run", fails)
    result = here("compare", "--spec", spec_file(SPEC), "--out", tmp_path / "out", "--json")
    assert result.returncode == 2 and json.loads(result.stdout)["id"] == record.id
    assert len(result.stderr.splitlines()) == 1 and "Cannot write to" in result.stderr
    assert (unkept or f"stored as {record.id}") in result.stderr


def test_what_was_measured_of_the_claims_is_printed_where_it_cannot_be_kept(here, monkeypatch, tmp_path):
    board = stored_board(DEFAULT_MODEL)
    monkeypatch.setattr("kvq_core.cli.claims._measured", lambda *_: board)
    (tmp_path / "home").write_text("in the way")
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    result = here("claims", "--json")
    assert result.returncode == 2 and json.loads(result.stdout)["claims"]
    assert len(result.stderr.splitlines()) == 1 and "The board cannot be written" in result.stderr


def test_a_store_that_makes_no_sense_is_one_line(here, monkeypatch):
    monkeypatch.setenv("KVQ_STORE", "nosuch://place")
    refused(here("show", "0" * 16), "nosuch")


@pytest.fixture(scope="module")
def compared(real_model, tmp_path_factory):
    """One real comparison through the command line: result, its folder, its store."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "spec.json").write_text(json.dumps(SPEC))
    store = f"file://{folder}/store"
    result = cli("compare", "--spec", folder / "spec.json", "--out", folder / "out", "--json", KVQ_STORE=store)
    return result, folder, store


def test_a_lane_is_added_to_a_stored_run(compared, here, monkeypatch):
    _, folder, store = compared
    monkeypatch.setenv("KVQ_STORE", store)
    parent = read_run(folder / "out")[0]
    done = here("add", parent.id, '{"method": "per_token", "knobs": {"bits": 3}}', "--json")
    record = json.loads(done.stdout)
    assert done.returncode == 0 and record["parent"] == parent.id and record["lanes"][0]["metrics"]["kld_mean"] > 0
    assert open_store().load(record["id"])[0].model_dump(mode="json") == record
    refused(here("add", parent.id, "kivi"), "'kivi'", "JSON")
    refused(here("add", parent.id, '{"method": "kivi", "knobs": {"bits": 99}}'), "LANE", "99")
    refused(here("add", "0" * 16, '{"method": "kivi"}'), "0" * 16)
    told = here("why", parent.id, "kivi2").stdout
    assert "keys in fp16" in told and "not explained by layers" in told and "Most gained for a byte first" in told
    found = json.loads(here("why", parent.id, "kivi2", "--json").stdout)
    assert found["recorded"] == parent.lanes[0].metrics.kld_mean and len(found["causes"]) >= 5
    refused(here("why", parent.id, "none"), "'none'", "kivi2")
    seen = json.loads(here("capture", parent.id, "pt8", "--json").stdout)
    assert seen["layers"] == list(range(30)) and seen["recorded"] == parent.lanes[1].metrics.kld_mean
    assert seen["kld"] == pytest.approx(seen["recorded"], rel=1e-1)
    assert "lane/0/delta_map" in open_store().load(seen["run"])[1]


def test_compare_prints_exactly_the_record(compared):
    result, folder, store = compared
    assert result.returncode == 0 and result.stderr == ""
    record, arrays = read_run(folder / "out")
    assert result.stdout == record_json(record) + "\n"
    assert (folder / "out" / "record.json").read_text() + "\n" == result.stdout
    kept, kept_arrays = open_store(store).load(record.id)
    assert kept == record and kept_arrays.keys() == arrays.keys()
    assert [lane.label for lane in record.lanes] == ["kivi2", "pt8"]
    assert record.lanes[0].metrics.kld_mean > record.lanes[1].metrics.kld_mean > 0
    assert sorted(f.name for f in (folder / "out").iterdir()) == ["arrays.safetensors", "manifest.json", "record.json"]


def test_show_gives_the_same_record_from_id_and_folder(here, compared, monkeypatch):
    result, folder, store = compared
    monkeypatch.setenv("KVQ_STORE", store)
    for run in (json.loads(result.stdout)["id"], folder / "out"):
        shown = here("show", run, "--json")
        assert (shown.returncode, shown.stdout, shown.stderr) == (0, result.stdout, "")


def test_show_for_people_has_a_row_a_lane(here, compared):
    text = here("show", compared[1] / "out").stdout
    for word in (
        "K bits",
        "KLD mean",
        "drafts kept",
        "score Δ",
        "key error",
        "Noise floor",
        "kivi2",
        "pt8",
        "too few for a verdict",
    ):
        assert word in text
    assert "nan" not in text.lower().split() and "-0.0000" not in text


def test_what_a_lane_notes_is_told_below_the_table(sample_run):
    record, arrays = sample_run()
    record.lanes[1].notes = ["regularization is in the range where the paper's ablation collapses; lower λ"]
    record.lanes[0].flags = ["never_engaged", "too_few_positions"]
    lines = describe_record(record, arrays).splitlines()
    assert "SQuat: regularization is in the range where the paper's ablation collapses; lower λ" in lines
    assert "KIVI 2-bit: never engaged" in lines


def test_the_same_comparison_is_not_computed_twice(here, compared, monkeypatch):
    result, folder, store = compared
    monkeypatch.setenv("KVQ_STORE", store)
    again = here("compare", "--spec", folder / "spec.json", "--json")
    assert again.stdout == result.stdout  # timings and all


def test_a_damaged_run_is_one_line(here, compared, tmp_path):
    _, folder, _ = compared
    copy = shutil.copytree(folder / "out", tmp_path / "copy")
    raw = bytearray((copy / "arrays.safetensors").read_bytes())
    raw[len(raw) // 2] ^= 1
    (copy / "arrays.safetensors").write_bytes(raw)
    refused(here("show", copy), "damaged", "arrays.safetensors")


def left_nothing(folder: Path) -> bool:
    """Neither a run nor a part of one."""
    here = [file.name for file in folder.iterdir()]
    return "out" not in here and not any((folder / "store").glob("*")) and not any(f.startswith(".out-") for f in here)


def test_ctrl_c_while_libraries_load_ends_the_process_with_130(tmp_path, spec_file):
    """``ready`` when it is that moment, because a busy machine is slow."""
    tell = "print('ready', file=sys.stderr, flush=True)"
    code = f"import sys\nfrom kvq_core.cli.main import main\n{tell}\nsys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "compare", "--spec", str(spec_file(SPEC)), "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background inherit none
    )
    with process:
        try:
            assert process.stderr.readline() == "ready\n"
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert out == "" and "Traceback" not in err and left_nothing(tmp_path)


@pytest.fixture
def interruptible():
    """Workers of xdist ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("moment", ["the model loads", "tokens are decoded"])
def test_ctrl_c_leaves_nothing_and_is_status_130(here, smollm, interruptible, tmp_path, spec_file, monkeypatch, moment):
    model, steps, reached = tiny("llama", tokenizer=smollm.tokenizer), Decode.steps, []

    def interrupt():
        reached.append(moment)
        signal.raise_signal(signal.SIGINT)

    def load(*_):
        if moment == "the model loads":
            interrupt()
        return model

    def interrupted(*arguments):
        for step, found in enumerate(steps(*arguments)):
            yield found
            if step == 2:
                interrupt()

    monkeypatch.setattr("kvq_core.pipeline.compare.load", load)
    monkeypatch.setattr(Decode, "steps", interrupted)
    lanes = [{"method": "kivi"}]
    spec = spec_file({**SPEC, "lanes": lanes, "max_new_tokens": 200, "ignore_eos": True})
    result = here("compare", "--spec", spec, "--out", tmp_path / "out")
    assert (result.returncode, result.stdout, reached) == (130, "", [moment])
    assert "Traceback" not in result.stderr and left_nothing(tmp_path)


@pytest.mark.slow
def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} -m kvq_core methods | head -1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert "Traceback" not in result.stderr and result.returncode in (0, 141)
