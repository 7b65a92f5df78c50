"""A lane's rules: the short form, the plan, names, canonical form, and what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvq_core.errors import SpecError
from kvq_core.methods import ModelShape, methods
from kvq_core.presets import read_spec
from kvq_core.spec import TENSORS, Lane, Rule, parse_lane, parse_spec
from kvq_core.spec.links import decode, encode

SHAPE = ModelShape(6, 4, 2, 32, 1024)
KEYS = {"method": "per_token", "knobs": {"bits": 8}, "tensors": "keys"}
VALUES = {"method": "kivi", "tensors": "values"}
SKIP = {"method": "fp16", "layers": [0, 1, 2, 3]}
SHORT = {"method": "kivi", "knobs": {"bits": 4}, "layers": [0, 2], "tensors": "keys", "center": "mean"}


def spec(*lanes: dict) -> dict:
    return {"prompt": "p", "lanes": list(lanes)}


def planned(lane: Lane) -> list[tuple[int, str, tuple[int, ...]]]:
    return [(each.number, each.tensor, each.layers) for each in lane.plan(SHAPE)]


@pytest.mark.parametrize("rule", [SHORT, {"method": "fp16"}, {"method": "innerq", "sink_tokens": 8}], ids=str)
def test_one_rule_is_the_short_form(rule):
    short, ruled = parse_spec(spec(rule)), parse_spec(spec({"rules": [rule]}))
    assert short == ruled and short.canonical() == ruled.canonical() and hash(short) == hash(ruled)
    assert "rules" not in short.canonical() and ruled.lanes[0].rules is None
    assert encode(short) == encode(ruled)


def test_several_rules_keep_their_places_and_read_back():
    asked = parse_spec(spec({"rules": [SKIP, KEYS, VALUES]}))
    (lane,) = asked.lanes
    assert lane.method is None and lane.knobs == {}
    assert planned(lane) == [(1, "keys", (4, 5)), (2, "values", (4, 5))]
    for again in (parse_spec(json.loads(asked.canonical())), parse_spec(asked.model_dump(mode="json"))):
        assert again == asked and again.canonical() == asked.canonical()
    assert decode(encode(asked)) == asked


def test_a_knob_at_its_default_is_the_same_rule():
    written = {**VALUES, "knobs": {"bits": 2, "group_size": 32}}
    assert (
        parse_spec(spec({"rules": [KEYS, written]})).canonical()
        == parse_spec(spec({"rules": [KEYS, VALUES]})).canonical()
    )
    assert (
        parse_spec(spec({"rules": [VALUES, KEYS]})).canonical()
        != parse_spec(spec({"rules": [KEYS, VALUES]})).canonical()
    )


def test_a_lane_is_named_by_its_rules():
    lane = Lane(rules=(Rule(**SKIP), Rule(**KEYS), Rule(**VALUES)))
    assert lane.title == "K per_token 8, V kivi 2; layers 0-3 fp16"
    assert lane.summary.startswith("layers 0-3 fp16; K per_token 8: K8 "), "fp16 there is no noise floor"
    assert parse_spec(spec(lane.model_dump())).lanes[0].label == lane.title
    many = Lane(rules=tuple(Rule(method="kivi", layers=(i,), knobs={"bits": 1 + i % 2}) for i in range(9)))
    assert len(many.default_label) <= 55 and parse_spec(spec(many.model_dump(), many.model_dump())).lanes[1].label


def test_a_lane_of_one_rule_for_some_tokens_says_for_which() -> None:
    lane = Lane(rules=[{"method": "q8_0", "tokens": "first:16"}])
    assert lane.title == lane.default_label == "first 16 q8_0" and lane.summary.startswith("first 16 q8_0: ")
    assert Lane(rules=[{"method": "q8_0", "tensors": "keys"}]).title == "llama.cpp q8_0"


def test_toml_files_hold_rules(tmp_path):
    file = tmp_path / "spec.toml"
    file.write_text(
        'prompt = "p"\n[[lanes]]\nlabel = "mixed"\n[[lanes.rules]]\nmethod = "per_token"\ntensors = "keys"\n'
        'knobs = { bits = 8 }\n[[lanes.rules]]\nmethod = "kivi"\ntensors = "values"\n'
    )
    assert read_spec(file) == parse_spec(spec({"label": "mixed", "rules": [KEYS, VALUES]}))


BAD = [
    ({"rules": []}, ["rules = []", "at least one"]),
    ({"rules": {}}, ["rules = {}", "must be a list"]),
    ({"rules": [KEYS, 3]}, ["rule 2 = 3", "must be an object"]),
    ({"rules": [KEYS, {}]}, ["rule 2", "method is missing"]),
    ({"rules": [KEYS, {**VALUES, "label": "x"}]}, ["rule 2", "Unknown field 'label'", "tensors"]),
    ({"rules": [KEYS, {"method": "kvi"}]}, ["rule 2", "Did you mean 'kivi'"]),
    ({"rules": [KEYS, {**VALUES, "layers": []}]}, ["rule 2", "layers = []"]),
    ({"rules": [KEYS, {**VALUES, "layers": [-1]}]}, ["rule 2", "layers", "-1"]),
    ({"rules": [KEYS, VALUES], "method": "kivi"}, ["rules and method", "kivi", "both given"]),
    ({"rules": [KEYS, VALUES], "sink_tokens": 4}, ["rules and sink_tokens = 4", "both given"]),
    ({"rules": [KEYS, VALUES], "layers": [1]}, ["rules and layers", "both given"]),
    ({"rules": [KEYS, VALUES, KEYS]}, ["rule 3 (K per_token 8)", "never be reached", "move it up"]),
    ({"rules": [{"method": "kivi"}, SKIP]}, ["rule 2 (layers 0-3 fp16)", "never be reached"]),
    ({"rules": [{**KEYS, "layers": [1]}, VALUES, {**KEYS, "layers": [1]}]}, ["rule 3", "never be reached"]),
    ({"rules": [KEYS, {"method": "svdq", "tensors": "values"}]}, ["rule 2", "quantizes nothing", "values fp16"]),
    ({"rules": [KEYS, {**VALUES, "center": "mean"}]}, ["rule 2", "center = mean", "no keys"]),
    ({"rules": [KEYS, {**VALUES, "tokens": "newest"}]}, ["rule 2", "tokens = 'newest'", "first:n", "[[40, 60]]"]),
    ({"rules": [KEYS, {**VALUES, "tokens": "first:0"}]}, ["rule 2", "first:0", "is not allowed"]),
    ({"rules": [KEYS, {**VALUES, "tokens": [[60, 40]]}]}, ["rule 2", "tokens", "is not allowed"]),
    ({"rules": [{"method": "kivi"}] * 257}, ["rules", "256"]),
    ({"rules": [KEYS, {**VALUES, "tokens": [[-5, 10]]}]}, ["rule 2", "tokens[0][0] = -5", "equal to 0"]),
    ({"rules": [KEYS, {**VALUES, "tokens": [[0.5, 10]]}]}, ["rule 2", "tokens[0][0] = 0.5", "integer"]),
    ({"rules": [KEYS, VALUES], "prefill": {"chunk": 0}}, ["prefill.chunk = 0", "equal to 1"]),
    ({"rules": [KEYS, VALUES], "prefill": "0 raw"}, ["prefill.chunk = 0", "equal to 1"]),
    ({"rules": [KEYS, VALUES], "prefill": {"size": 5}}, ["Unknown field 'prefill.size'", "chunk, own_chunk, fit"]),
    (
        {"rules": [KEYS, VALUES], "prefill": "often"},
        ["prefill = 'often'", 'such as "full", "deployed" or {"chunk": 512}'],
    ),
    (
        {"rules": [{"method": "q8_0", "tensors": "keys"}, {"method": "fp8"}], "prefill": "deployed"},
        ["K q8_0 is read by llama.cpp (its own chunk stored)", "fp8 by vLLM"],
    ),
    (
        {"rules": [{"method": "q8_0", "tensors": "keys"}, VALUES], "prefill": "deployed"},
        ["K q8_0 is read by llama.cpp", "V kivi 2 by no engine"],
    ),
]


@pytest.mark.parametrize(("lane", "named"), BAD, ids=[repr(lane)[:60] for lane, _ in BAD])
def test_what_is_impossible_is_refused_in_one_line(lane, named):
    for say in (lambda: parse_spec(spec({"label": "mixed", **lane})), lambda: parse_lane({"label": "mixed", **lane})):
        with pytest.raises(SpecError) as caught:
            say()
        message = str(caught.value)
        assert "\n" not in message and len(message) < 500
        assert all(word in message for word in named), message


@pytest.mark.parametrize("other", ["fp16", "bf16"])
def test_what_is_not_quantized_fits_every_home(other):
    rules = [{"method": "q8_0", "tensors": "keys"}, {"method": other, "tensors": "values"}]
    chunks = parse_lane({"rules": rules, "prefill": "deployed"}).chunks
    assert (chunks.chunk, chunks.own_chunk) == (512, "stored")
    assert parse_lane({"method": other, "prefill": "deployed"}).chunks is None
    assert parse_lane({"method": other, "prefill": 512}).chunks == parse_lane({"method": other, "prefill": {}}).chunks


def test_layers_that_are_not_there_are_named():
    lane = Lane(rules=(Rule(**SKIP), Rule(**{**KEYS, "layers": (4, 6)}), Rule(**VALUES)))
    assert (
        lane.why_not(SHAPE) == "rule 2 (layers 4, 6 K per_token 8): layer 6 does not exist; the model has layers 0 to 5"
    )
    assert Lane(**SHORT, label="x").why_not(ModelShape(2, 4, 2, 32, 9)) == (
        "layer 2 does not exist; the model has layers 0 to 1"
    )
    whole = Lane(rules=(Rule(method="kivi", layers=tuple(range(6))), Rule(**VALUES)))
    assert "rule 2 (V kivi 2) can never be reached" in str(whole.why_not(SHAPE))
    assert whole.why_not(ModelShape(7, 4, 2, 32, 9)) is None


def test_a_rule_that_cannot_run_on_a_model_is_named():
    lane = Lane(rules=(Rule(**KEYS), Rule(method="kivi", knobs={"group_size": 48, "residual_length": 48})))
    assert str(lane.why_not(SHAPE)).startswith("rule 2 (kivi 2): group_size = 48 does not divide")


@st.composite
def rules_of(draw: st.DrawFn) -> list[Rule]:
    layers = st.one_of(st.just("all"), st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True).map(tuple))
    return [
        Rule(
            method=draw(st.sampled_from(["kivi", "per_token", "fp16", "per_channel"])),
            tensors=draw(st.sampled_from(["both", "keys", "values"])),
            layers=draw(layers),
        )
        for _ in range(draw(st.integers(1, 5)))
    ]


@given(rules_of())
def test_the_first_rule_that_fits_wins(rules):
    """Against the sentence itself: for every layer and tensor, the first rule in the list that is for both."""
    expected = {}
    for layer in range(SHAPE.layers):
        for tensor in TENSORS:
            fits = (
                n
                for n, r in enumerate(rules)
                if r.tensors in ("both", tensor) and (r.layers == "all" or layer in r.layers)
            )
            first = next(fits, None)
            if first is not None and methods()[rules[first].method].quantizes:
                expected[layer, tensor] = first
    try:
        lane = Lane(rules=tuple(rules))
    except SpecError as error:
        assert "never be reached" in str(error)
        return
    found = {(layer, each.tensor): each.number for each in lane.plan(SHAPE) for layer in each.layers}
    assert found == expected and sum(len(each.layers) for each in lane.plan(SHAPE)) == len(expected)


def test_more_rules_than_a_lane_takes_are_counted_before_any_is_read() -> None:
    with pytest.raises(SpecError, match="^lane 1: 60,000 rules were given; at most 256 are allowed.$"):
        parse_spec({"prompt": "x", "lanes": [{"rules": [{"method": "nonsense"}] * 60_000}]})
