"""ComparisonSpec: what is refused and how it is said, labels, canonical form, hash, files."""

import json
import math

import pytest

from kvq_core.errors import SpecError
from kvq_core.presets import read_spec
from kvq_core.spec import DEFAULT_MODEL, MAX_LANES, ComparisonSpec, Lane, parse_spec


def with_lane(**lane):
    return {"prompt": "p", "lanes": [{"method": "kivi", **lane}]}


BAD = [
    # (what was given, what the message must name)
    (None, ["object", "NoneType"]),
    ([], ["object", "list"]),
    ({}, ["prompt", "missing"]),
    ({"prompt": ""}, ["prompt", "empty"]),
    ({"prompt": " \n\t"}, ["prompt", "empty"]),
    ({"prompt": 5}, ["prompt", "5"]),
    ({"prompt": "\ud800"}, ["prompt"]),
    ({"prompt": "p" * 2_000_001}, ["prompt", "2000000"]),
    ({"prompt": "p", "promt": "q"}, ["promt", "allowed", "prompt"]),
    ({"prompt": "p", "max_new_tokens": 0}, ["max_new_tokens", "0", "1"]),
    ({"prompt": "p", "max_new_tokens": "many"}, ["max_new_tokens", "many"]),
    ({"prompt": "p", "temperature": -1}, ["temperature", "-1"]),
    ({"prompt": "p", "temperature": math.nan}, ["temperature", "nan"]),
    ({"prompt": "p", "seed": -1}, ["seed", "-1"]),
    ({"prompt": "p", "score_chunk": 0}, ["score_chunk"]),
    ({"prompt": "p", "seed": True}, ["seed = True", "numbers"]),
    ({"prompt": "p", "capture": {"layers": [0, False]}}, ["capture.layers = [0, False]", "numbers"]),
    (with_lane(prefill={"chunk": True}), ["lane 1 (KIVI): prefill.chunk = True", "numbers"]),
    (with_lane(layers=[True]), ["layers = [True]", "numbers"]),
    (with_lane(knobs={"key_bits": True}), ["key_bits = True", "1, 2, 3, 4, 8"]),
    (with_lane(method="fp16", select={"by": "h2o", "heavy": True}), ["heavy = True", "number from 0 to 1"]),
    (with_lane(method="svdq", knobs={"sparsity": {"chunk_size": True}}), ["sparsity.chunk_size = True", "integer"]),
    ({"prompt": "p", "continuation": " "}, ["continuation", "empty"]),
    ({"prompt": "p", "score_turns": "all"}, ["score_turns", "without messages"]),
    ({"prompt": "p", "lanes": {}}, ["lanes = {}", "must be a list"]),
    ({"prompt": "p", "lanes": [1]}, ["lane 1 = 1", "must be an object"]),
    ({"prompt": "p", "lanes": [{}]}, ["lane 1: method is missing"]),
    ({"prompt": "p", "lanes": [{"method": "kvi"}]}, ["lane 1: ", "kvi", "Did you mean 'kivi'", "squat"]),
    ({"prompt": "p", "lanes": [{"method": "kivi"}, {"method": "nope"}]}, ["lane 2: ", "nope"]),
    ({"prompt": "p", "lanes": [{"method": "kivi"}] * 80}, ["80", "64", "16"]),
    (with_lane(bits=2), ["lane 1 (KIVI): Unknown field 'bits'", "allowed", "knobs"]),
    (with_lane(knobs={"bits": 7}), ["kivi", "bits", "7", "1, 2, 3, 4, 8"]),
    (with_lane(knobs={"bits": "2; rm -rf"}), ["bits", "rm"]),
    (with_lane(knobs={"bitz": 2}), ["bitz", "bits", "group_size"]),
    (with_lane(knobs={"residual_length": 33}), ["residual_length", "33", "group_size", "64"]),
    (with_lane(knobs=[]), ["lane 1 (KIVI): knobs = []", "must be an object"]),
    (with_lane(knobs={"bits": "x" * 5000}), ["bits = 'xxx", "..."]),
    (with_lane(method="svdq", knobs={"schedule": [8, 4]}), ["schedule = [8, 4]", "list of 8 numbers from 0 to 8"]),
    (with_lane(method="svdq", knobs={"schedule": [8, 4, 9, 0, 0, 0, 0, 0]}), ["schedule[2] = 9", "from 0 to 8"]),
    (with_lane(method="svdq", knobs={"target_bits": 0}), ["target_bits = 0", "from 0.125 to 8"]),
    (with_lane(method="commvq", knobs={"codebooks": "../x"}), ["codebooks = '../x'", "text that matches ^[A-Za-z0-9]"]),
    (with_lane(tensors="k"), ["tensors", "both", "keys", "values"]),
    (with_lane(layers=[]), ["layers", "all"]),
    (with_lane(layers=[0, 3, 0]), ["layers = [0, 3, 0]", "twice"]),
    (with_lane(layers=[-1]), ["layers", "-1"]),
    (with_lane(sink_tokens=-1), ["sink_tokens", "-1"]),
    (with_lane(sink_tokens=4, knobs={"sink_tokens": 4}), ["sink_tokens", "lane", "knob"]),
    (with_lane(recent_tokens=64, knobs={"residual_length": 32}), ["recent_tokens", "residual_length"]),
    (with_lane(label="x" * 61), ["label", "60"]),
    ({"prompt": "p", "lanes": [{"method": "kivi", "label": "a"}] * 2}, ["'a'", "differ"]),
    ({"prompt": "p", "lanes": [{"method": "fp16", "sink_tokens": 1}]}, ["fp16", "sink_tokens"]),
    ({"prompt": "p", "capture": {"layer": [1]}}, ["capture.layer", "layers"]),
    ({"prompt": "p", "capture": {"detail": "x"}}, ["detail", "off", "normal"]),
]


@pytest.mark.parametrize(("given", "named"), BAD, ids=[repr(b[0])[:50].encode("ascii", "replace") for b in BAD])
def test_what_is_impossible_is_refused_in_one_line(given, named):
    with pytest.raises(SpecError) as caught:
        parse_spec(given)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 400
    for word in named:
        assert word in message


def test_defaults():
    spec = parse_spec({"prompt": "p"})
    assert (spec.model, spec.lanes, spec.max_new_tokens, spec.temperature) == (DEFAULT_MODEL, (), 64, 0.0)


def test_a_spec_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        parse_spec({"prompt": "p"}).prompt = "q"


def test_sixty_four_lanes_are_allowed_and_labelled_apart():
    spec = parse_spec({"prompt": "p", "lanes": [{"method": "kivi"}] * MAX_LANES})
    labels = [lane.label for lane in spec.lanes]
    assert labels[:3] == ["KIVI", "KIVI (2)", "KIVI (3)"] and len(set(labels)) == MAX_LANES


def test_given_labels_stay():
    spec = parse_spec({"prompt": "p", "lanes": [{"method": "kivi", "label": "mine"}, {"method": "kivi"}]})
    assert [lane.label for lane in spec.lanes] == ["mine", "KIVI"]
    blank, broken = parse_spec(
        {"prompt": "p", "lanes": [{"method": "kivi", "label": " \t "}, {"method": "kivi", "label": " two\n lines "}]}
    ).lanes
    assert (blank.label, broken.label) == ("KIVI", "two lines")


def test_canonical_form_does_not_depend_on_order_or_spelled_out_defaults():
    short = {
        "prompt": "p",
        "lanes": [{"method": "kivi", "knobs": {"bits": 4, "group_size": 64, "residual_length": 64}}],
    }
    lane = {"knobs": {"residual_length": 64, "group_size": 64, "bits": 4}, "method": "kivi", "tensors": "both"}
    long = {"seed": 0, "lanes": [lane], "chat": True, "prompt": "p", "model": DEFAULT_MODEL, "notes": ""}
    assert parse_spec(short).canonical() == parse_spec(long).canonical()
    assert hash(parse_spec(short)) == hash(parse_spec(long))


def test_canonical_form_is_pinned():
    """Ids of stored runs hang on these bytes; they may change only together with results_version."""
    spec = parse_spec({"prompt": "é", "lanes": [{"method": "kivi", "knobs": {"bits": 4, "group_size": 32.0}}]})
    lanes = '[{"knobs":{"bits":4},"label":"KIVI","method":"kivi"}]'
    expected = f'{{"lanes":{lanes},"model":"{DEFAULT_MODEL}","prompt":"é"}}'
    assert spec.canonical() == expected


def test_canonical_form_reads_back_as_the_same_spec():
    spec = parse_spec({**with_lane(layers=[0, 3], tensors="keys", sink_tokens=4), "temperature": 0.7, "seed": 5})
    again = parse_spec(json.loads(spec.canonical()))
    assert again == spec and hash(again) == hash(spec)


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "q"},
        {"seed": 1},
        {"max_new_tokens": 63},
        {"system": ""},
        {"chat": False},
        {"lanes": []},
        {"notes": "n"},
    ],
    ids=str,
)
def test_any_change_changes_the_canonical_form(change):
    base = with_lane()
    assert parse_spec({**base, **change}).canonical() != parse_spec(base).canonical()


def test_lane_options_reach_the_windows():
    lane = Lane(method="kivi", sink_tokens=4, recent_tokens=64, knobs={"group_size": 32})
    key, value = lane.windows()
    assert (key.sink, key.step, value.sink, value.recent) == (4, 64, 4, 64)


def test_the_untouched_tensor_never_leaves_its_window():
    key, value = Lane(method="kivi", tensors="keys").windows()
    assert key.step is not None and value.step is None


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_files_say_the_same_as_data(tmp_path, suffix):
    data = with_lane(knobs={"bits": 4})
    text = {
        "json": json.dumps(data),
        "toml": 'prompt = "p"\n[[lanes]]\nmethod = "kivi"\nknobs = { bits = 4 }\n',
    }[suffix]
    file = tmp_path / f"spec.{suffix}"
    file.write_text(text)
    assert read_spec(file) == parse_spec(data)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.json", b"{", "JSON"),
        ("a.json", b"[" * 200_000, "JSON"),
        ("a.json", b"\xff\xfe\x00", "JSON"),
        ("a.toml", b"prompt = ", "TOML"),
        ("a.toml", b"\xff", "TOML"),
        ("a.json", None, "No such file"),
    ],
)
def test_unreadable_files_are_one_line(tmp_path, name, content, named):
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        read_spec(file)
    assert named in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.slow
def test_hash_is_the_same_in_every_process():
    """Python salts str hashes; a spec's must not depend on the salt."""
    import subprocess
    import sys

    code = "from kvq_core.spec import parse_spec; print(hash(parse_spec({'prompt': 'p'})))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(out.stdout) == hash(ComparisonSpec(prompt="p"))
