"""A server's cache verified over HTTP: what is measured of every dialect, what goes wrong, and what is gone on with."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from kvq_core.cli.main import main
from kvq_core.servers import asking, http, verification
from kvq_core.servers.tops import Top
from kvq_core.servers.verified import junit, markdown
from tests.support.toy_servers import OWNERS, Toy, encode, serving

PROMPTS = [f"Prompt {number} of a few, with words enough to be read in pieces." for number in range(3)]
TOKENS, TOP = 6, 8


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KVQ_STORE", f"file://{tmp_path}/store")
    monkeypatch.setattr(http.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(verification, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))  # no process a test
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in PROMPTS))
    return tmp_path


def run(home: Path, at: list[str], *more: str) -> int:
    given = ["--against", at[1], "--prompts", str(home / "p.jsonl"), "--tokens", str(TOKENS), "--top", str(TOP)]
    return main(["verify", at[0], *given, *more])


def expected(prompt: list[int], own: Toy, other: Toy) -> list[float]:
    """KLD by position, straight from the toys."""
    forced = own.greedy(prompt, TOKENS)
    told = [[toy.top([*prompt, *forced[:at]], TOP) for toy in (own, other)] for at in range(TOKENS)]
    lists = [[Top.of(*map(list, zip(*top, strict=True))) for top in pair] for pair in told]
    return [one.kld(two) for one, two in lists]


@pytest.mark.parametrize("engine", OWNERS)
def test_every_dialect_measures_what_is_there(engine: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, baseline = Toy(engine, 0.3), Toy(engine)
    with serving(server, baseline) as at:
        assert run(home, at, "--json", "--tolerance", "0.5") == 0
    told = json.loads(capsys.readouterr().out)
    start = "" if engine in ("OpenAI", "SGLang") else "user: "
    by_prompt = [np.mean(expected(encode(start + text), baseline, server)) for text in PROMPTS]
    assert [each["kld"] for each in told["prompts"]] == pytest.approx(by_prompt, abs=1e-9)
    assert told["kld"]["mean"] == pytest.approx(np.mean(by_prompt)) and told["n_scored"] == 3 * TOKENS
    assert told["verdict"] == "as expected" and 0.3 < told["covered_mass"] < 1 and told["reused"] > 0.8
    untried = [note for note in told["notes"] if "untried on a real server" in note]
    assert (not untried) if engine == "llama.cpp" else (engine in untried[0])
    assert told["worst"][0]["kld"] == pytest.approx(max(told["worst"], key=lambda one: one["kld"])["kld"])
    assert told["worst"][0]["before"] and len(told["worst"][0]["server"]) == 1


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("redirect", "elsewhere.test"),
        ("bomb", "compressed"),
        ("long", "more than"),
        ("html", "not JSON"),
        ("list", "list where an object belongs"),
        ("form", "another form"),
        ("nan", "NaN is no number"),
        ("slow", "within 0.5 s"),
        ("refused", "refused"),
        ("killed", "cannot be reached"),
        ("busy", "refused"),
        ("tokenizer", "other tokens than its baseline"),
    ],
)
def test_a_fault_is_one_line(
    fault: str, said: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http, "SECONDS", 0.5)
    monkeypatch.setattr(http.Http.__init__, "__defaults__", (None, http.MOST_BYTES, 0.5))
    monkeypatch.setenv("KVQ_SERVER_KEY", "a-secret-of-mine")
    with serving(Toy(noise=0.1, fault=fault, after=6), Toy()) as at:
        assert run(home, at) == 3
    told = capsys.readouterr()
    errors = [line for line in told.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and said in errors[0] and not told.out and len(errors[0]) < 400
    assert "a-secret" not in told.err + told.out


def test_a_key_goes_to_its_own_server_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVQ_SERVER_KEY", "a-secret-of-mine")
    server, baseline = Toy(noise=0.1), Toy()
    with serving(server, baseline) as at:
        run(home, at)
    assert {headers.get("Authorization") for _, _, headers in server.asked} == {"Bearer a-secret-of-mine"}
    assert {headers.get("Authorization") for _, _, headers in baseline.asked} == {None}


def test_a_busy_server_is_asked_again(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Toy(noise=0.1, fault="busy", after=9, times=3), Toy()) as at:
        assert run(home, at, "--tolerance", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["n_scored"] == 3 * TOKENS


def test_fewer_log_probabilities_are_counted_and_bound(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Toy(noise=0.3, most=3), Toy()) as at:
        run(home, at, "--json")
        fewer = json.loads(capsys.readouterr().out)
    with serving(Toy(noise=0.3), Toy()) as at:
        run(home, at, "--json")
        more = json.loads(capsys.readouterr().out)
    assert fewer["unlisted"] >= 3 * TOKENS * (TOP - 3) > more["unlisted"]
    assert 0 < fewer["kld"]["mean"] <= more["kld"]["mean"]


def test_another_model_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Toy(vocabulary=91), Toy()) as at:
        assert run(home, at) == 3
    assert "serves another model than its baseline: n_vocab 91 and 90" in capsys.readouterr().err


def test_who_was_interrupted_goes_on_and_loses_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, baseline = Toy(noise=0.3), Toy()
    with serving(server, baseline) as at:
        assert run(home, at, "--json") == 3
        whole, calls = json.loads(capsys.readouterr().out), len(server.asked)
        server.asked.clear()
        server.fault, server.after = "killed", 2 * calls // 3
        assert run(home, at) == 3
        lines = next((home / "home" / "verifying").iterdir()).read_text().splitlines()
        assert len(lines) in (1, 2)
        server.fault = ""
        server.asked.clear()
        capsys.readouterr()
        assert run(home, at, "--json") == 3
        told = capsys.readouterr()
    again = json.loads(told.out)
    assert f"{len(lines)} of 3 prompts were asked before" in told.err and len(server.asked) < calls
    assert (again["kld"], again["prompts"], again["worst"]) == (whole["kld"], whole["prompts"], whole["worst"])
    assert not list((home / "home" / "verifying").iterdir())


def test_another_cache_at_the_same_address_is_asked_anew(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, baseline = Toy(noise=0.3), Toy()
    with serving(server, baseline) as at:
        server.fault, server.after = "killed", 30
        run(home, at)
        server.fault, server.noise = "", 0.05
        capsys.readouterr()
        run(home, at, "--json")
        told = capsys.readouterr()
    assert "answers otherwise than when this was begun" in told.err
    assert json.loads(told.out)["kld"]["mean"] < 0.05


def test_prefixes_that_are_not_reused_are_said_and_their_cost_first(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Toy(noise=0.1, reuse=False), Toy()) as at:
        run(home, at)
    told = capsys.readouterr()
    assert "reads a text again with every token: about" in told.err
    assert "Prefixes were not reused: 0%" in told.out


def test_other_clients_raise_the_floor(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A baseline whose low bits differ from one answer to the next."""

    class Shaken(Toy):
        def logprobs(self, ids: list[int]) -> np.ndarray:
            self.seed += 1
            return super().logprobs(ids)

    floors = []
    for baseline in (Toy(), Shaken(noise=0.05)):
        with serving(Toy(noise=0.3), baseline) as at:
            run(home, at, "--json")
        floors.append(json.loads(capsys.readouterr().out)["floor"])
    assert floors[0] == 1e-6 and floors[1] > 1e-4


def test_a_verification_is_kept_and_exported(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Toy(noise=0.3), Toy()) as at:
        assert run(home, at, "--tolerance", "0.0001", "--json", "--out", str(home / "v.xml")) == 1
    report = json.loads(capsys.readouterr().out)
    suite = ET.fromstring((home / "v.xml").read_text())
    assert (suite.get("failures"), suite.get("errors")) == ("1", "0") and suite.find("testcase/failure") is not None
    assert main(["verify", report["id"], "--json", "--out", str(home / "v.md")]) == 1
    assert json.loads(capsys.readouterr().out) == report
    assert (home / "v.md").read_text() == markdown(report) and "| Prompt | Delivered |" in markdown(report)
    hostile = {**report, "why": "<script>|\x00\ud800"}
    ET.fromstring(junit(hostile))
    assert "<script" not in markdown(hostile).replace("\\<", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["http://a b"], "not allowed"),
        (["http://me:secret@host"], "with a name or a password"),
        (["file:///etc/passwd"], "not allowed"),
        (["http://h"], "Give --prompts"),
        (["http://h", "--against", "http://g", "--prompts", "FILE", "--tokens", "0"], "tokens 0"),
        (["http://h", "--against", "http://g", "--prompts", "FILE", "--format", "q9"], "Cache type 'q9'"),
        (["http://h", "--against", "http://g", "--prompts", "FILE", "--out", "x.csv"], "ends in .md or .xml"),
        (["0123456789abcdef"], "not in this store"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    home: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lacks_more = len(arguments) == 1 and said != "Give --prompts"
    more = ["--against", "http://g", "--prompts", str(home / "p.jsonl")] if lacks_more else []
    given = [str(home / "p.jsonl") if each == "FILE" else each for each in arguments]
    assert main(["verify", *given, *more]) == 2
    told = capsys.readouterr().err
    assert said in told and "secret" not in told and len(told.strip().splitlines()) == 1


def test_a_public_instance_asks_no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVQ_MODELS", "one")
    with pytest.raises(Exception, match="public and asks no servers"):
        http.Http("http://127.0.0.1:1")


def test_pieces_of_a_prompt_are_few_and_leave_something_to_read() -> None:
    for length in (2, 3, 50, 97, 500, 10_000):
        ends = asking._divided(length)
        assert ends == sorted(ends) and 0 < ends[0] and ends[-1] < length and len(ends) <= asking.PIECES
