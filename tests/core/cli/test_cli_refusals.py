"""Rules, prefills, conversations and numbers of lanes that make no sense: one line each on the command line."""

import json
import subprocess

import pytest

from kvq_core.cli.main import main

KIVI = {"method": "kivi"}
ASK = {"role": "user", "content": "Who keeps the tide tables?"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "tides", "arguments": {}}}]}


@pytest.fixture
def compare(capfd, tmp_path):
    def call(spec: dict) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "spec.json"
        file.write_text(json.dumps(spec))
        capfd.readouterr()
        status = main(["compare", "--spec", str(file), "--out", str(tmp_path / "out"), "--json"])
        out, err = capfd.readouterr()
        assert not (tmp_path / "out").exists()
        return subprocess.CompletedProcess((), status, out, err)

    return call


def lane(**fields: object) -> dict:
    return {"prompt": "Tell me about tides.", "max_new_tokens": 4, "lanes": [{"label": "lane", **fields}]}


def asked(*messages: dict, **more: object) -> dict:
    return {"messages": list(messages), "max_new_tokens": 4, "lanes": [KIVI], **more}


ANYWHERE = {
    "no rule": (lane(rules=[]), ["rules = []", "at least one rule"]),
    "quantizes nothing": (lane(rules=[{"method": "h2o", "tokens": "last:8"}, KIVI]), ["rule 1"]),
    "never reached": (lane(rules=[KIVI, {"method": "fp16"}]), ["rule 2 (fp16)", "never be reached"]),
    "chunk 0": (lane(**KIVI, prefill={"chunk": 0}), ["chunk", "0", "1"]),
    "chunk 0 in words": (lane(**KIVI, prefill="0 raw"), ["chunk", "0"]),
    "two systems": (asked({"role": "system", "content": "a"}, {"role": "system", "content": "b"}, ASK), ["message 2"]),
    "nobody asks": (asked({"role": "system", "content": "a"}), ["user"]),
    "no such tool": (asked(ASK, CALL, ASK), ["message 2", "tides", "not among tools"]),
    "65 lanes": ({**lane(), "lanes": [KIVI] * 65}, ["65", "64"]),
    "score_chunk": (
        {
            **lane(method="per_token", recent_tokens=8, prefill={"chunk": 64, "own_chunk": "stored"}),
            "continuation": "The sea came up.",
            "score_chunk": 4,
        },
        ["score_chunk = 4", "lane", "newest", "score_chunk = 1"],
    ),
}
ON_A_MODEL = {
    "a layer there is not": (lane(rules=[{"method": "fp16", "layers": [30]}, KIVI]), ["layer 30", "0 to 29"]),
    "a span outside": (lane(rules=[{"method": "fp16", "tokens": [[4000, 4010]]}, KIVI]), ["4010", "prompt"]),
}


@pytest.mark.parametrize("case", [*ANYWHERE, *(pytest.param(n, marks=pytest.mark.real_model) for n in ON_A_MODEL)])
def test_what_makes_no_sense_is_one_line_and_status_2(compare, case: str) -> None:
    spec, named = {**ANYWHERE, **ON_A_MODEL}[case]
    result = compare(spec)
    assert result.returncode == 2 and result.stdout == "", result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and len(result.stderr) < 600, result.stderr
    assert all(word in result.stderr for word in named), result.stderr


@pytest.mark.parametrize(
    ("option", "given", "why"),
    [
        *(("--shard", text, "give I/N, such as 1/4") for text in ("0/2", "3/2", "a/b", "1", "1/0", "1/2/3", "")),
        ("--ray", "", "give auto, or the address of a cluster"),
        ("--workers", "0", "give a whole number from 1 to 256"),
    ],
)
def test_a_place_that_cannot_be_is_refused_in_a_line(capsys, tmp_path, option, given, why):
    assert main(["study", "--spec", str(tmp_path / "none.toml"), option, given]) == 2
    out, err = capsys.readouterr()
    assert not out and err == f"error: {option} {given!r} is not allowed; {why}{err.partition(why)[2]}"
    assert err.count("\n") == 1
