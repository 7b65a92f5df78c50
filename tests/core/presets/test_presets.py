"""The presets: complete, engaging every lane, and answered by the real model as their questions assume."""

import pytest

from kvq_core.errors import SpecError
from kvq_core.presets import preset, presets
from tests.support.campaigns import whole
from tests.support.tiny_models import generate

WANTED = {
    # name: (fewest, most) prompt tokens
    "first-look": (400, 700),
    "long-prompt": (1800, 2200),
    "keys-vs-values": (300, 800),
    "squat-fig2": (300, 800),
    "needle": (600, 1200),
}


def test_the_promised_presets_are_there_and_first_look_is_first():
    assert set(WANTED) <= set(presets())
    assert next(iter(presets())) == "first-look"


@pytest.mark.parametrize("name", presets())
def test_a_preset_says_what_it_asks_and_where_to_look(name):
    found = presets()[name]
    assert found.name == name
    assert found.question.endswith("?") and len(found.question) < 160
    assert found.look_at and all(hint.endswith(".") for hint in found.look_at)
    assert found.spec.lanes and found.spec.temperature == 0


@pytest.mark.parametrize("name", WANTED)
def test_prompts_are_as_long_as_promised_and_every_lane_engages(name, smollm):
    spec = presets()[name].spec
    fewest, most = WANTED[name]
    tokens = len(smollm.render(spec.prompt, spec.system, spec.chat))
    assert fewest <= tokens <= most
    assert tokens + spec.max_new_tokens <= smollm.shape.context
    for lane in spec.lanes:
        assert lane.why_not(smollm.shape) is None
        assert max(each.window.packed(tokens) for each in lane.plan(smollm.shape)) > tokens / 2


def test_first_look_holds_the_lanes_it_promises():
    lanes = {(lane.method, lane.build().model_dump()["bits"]) for lane in preset("first-look").spec.lanes}
    assert {("kivi", 4), ("kivi", 2), ("squat", 2), ("per_token", 4)} <= lanes
    squat = [lane.build() for lane in preset("first-look").spec.lanes if lane.method == "squat"]
    assert {m.key_space for m in squat} == {"post", "pre"} and {m.block_size for m in squat} == {16}


def test_keys_vs_values_covers_both_sides():
    lanes = preset("keys-vs-values").spec.lanes
    widths = {(m.width("key"), m.width("value")) for m in (lane.build() for lane in lanes if lane.tensors == "both")}
    assert {(4, 2), (2, 4)} <= widths
    assert {lane.tensors for lane in lanes} == {"both", "keys", "values"}


def answer(smollm, name, most):
    """Tokens of the full-precision answer, which are those of ``generate``: tests/core/pipeline/test_run.py."""
    spec = presets()[name].spec
    return generate(smollm, smollm.render(spec.prompt, spec.system, spec.chat), most, ignore_eos=False)


def test_the_needle_is_found_at_full_precision(smollm):
    assert "4718" in smollm.tokenizer.decode(answer(smollm, "needle", 24))


ANSWERED = sorted(set(WANTED) - {"needle", "long-prompt"})  # long-prompt runs in the benchmark


@pytest.mark.long("combine")
@pytest.mark.parametrize("name", ANSWERED if whole() else ["keys-vs-values"])
def test_answers_are_long_enough_for_a_verdict(smollm, name):
    """At least 50 scored positions: 51 generated tokens, and an answer that is more than one phrase repeated."""
    tokens = answer(smollm, name, 52)
    assert len(tokens) == 52 <= presets()[name].spec.max_new_tokens
    assert smollm.tokenizer.eos_token_id not in tokens
    words = smollm.tokenizer.decode(tokens).split()
    assert len(set(words)) > len(words) / 2


@pytest.mark.parametrize("wrong", ["frist-look", "First-Look", "", "../presets/needle", "x" * 500])
def test_an_unknown_preset_names_the_list(wrong):
    with pytest.raises(SpecError) as caught:
        preset(wrong)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600
    assert all(name in message for name in presets())


def test_a_near_miss_is_recognised():
    with pytest.raises(SpecError, match="Did you mean 'first-look'"):
        preset("frist-look")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("title = ", "cannot be read"),
        ('title = "t"\nquestion = "q?"\nlook_at = []\n', "object"),
        ('title = "t"\nquestion = "q?"\nlook_at = []\n[spec]\nprompt = ""\n', "empty"),
        ('titel = "t"\nquestion = "q?"\nlook_at = []\n[spec]\nprompt = "p"\n', "tit"),
    ],
)
def test_a_broken_preset_file_is_named(tmp_path, monkeypatch, text, named):
    (tmp_path / "mine.toml").write_text(text)
    monkeypatch.setattr("kvq_core.presets.ready.FOLDER", tmp_path)
    presets.cache_clear()
    try:
        with pytest.raises(SpecError) as caught:
            presets()
        assert "presets/mine.toml" in str(caught.value) and named in str(caught.value)
    finally:
        presets.cache_clear()
