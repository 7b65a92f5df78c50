"""Looking at a model before a run: facts, figures, remedies, and which layers are said to be at risk."""

import json
from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig

from kvq_core.cli.main import main
from kvq_core.errors import ModelError
from kvq_core.inspection import inspect_model
from kvq_core.inspection.look import FORCED, TOKENS, Look, stored_inspection
from kvq_core.inspection.remedies import MeasuredRemedy, plain_lane, remedy_lanes
from kvq_core.inspection.report import Remedy, spans
from kvq_core.inspection.risk import NOTHING, known_of, sentence_of
from kvq_core.inspection.rules import published, rules
from kvq_core.methods import ModelShape
from kvq_core.models import LoadedModel, load, wrap
from kvq_core.spec import Lane, Stress
from tests.support.reading_models import Letters, small
from tests.support.tiny_models import VOCABULARY


@pytest.mark.slow
def test_a_layer_that_carries_a_constant_is_named_with_its_cure() -> None:
    found = inspect_model(small("qwen2", constant=60, layer=1))
    assert found.at_risk_layers == (1,)
    (reason,) = found.reasons
    assert reason.cause == "constant"
    biases = sorted(layer.key_bias or 0 for layer in found.facts.layers)
    assert reason.times == pytest.approx(biases[-1] / biases[1])
    assert found.sentence.startswith("Keys of layer 1 carry constants ")
    assert "per-token and inner-grouped keys under 8 bits are at risk" in found.sentence
    by_name = {remedy.name: remedy for remedy in found.remedies}
    assert list(by_name) == ["Centre the keys", "Keys per channel", "8-bit keys", "Layer 1 in fp16"]
    assert found.plain_kld is not None
    assert (by_name["Centre the keys"].kld or 0) < found.plain_kld / rules().gain.value
    assert by_name["Centre the keys"].extra_bytes == 3 * 2 * 2 * 32 == by_name["Centre the keys"].fixed_bytes
    assert f"Cheapest remedy measured: centre the keys, 384 B (KLD {found.plain_kld:.2g} to" in found.sentence


@pytest.mark.slow
@pytest.mark.few(sample=2)
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral", "granite"])
def test_random_models_raise_no_alarm(name: str) -> None:
    found = inspect_model(small(name), remedies=False)
    assert (found.at_risk_layers, found.sentence) == ((), NOTHING)
    assert "safe" not in found.sentence


@pytest.mark.slow
def test_outlier_channels_are_told_from_constants() -> None:
    seen = Look(small("llama"), stress=Stress(key_outlier_scale=300, key_outlier_pairs=1, layers=(2,)))
    found = seen.inspection()
    assert found.at_risk_layers == (2,)
    assert found.reasons[0].cause == "outlier channels"
    assert found.reasons[0].times == pytest.approx(seen.figures[2].key_outliers)
    assert "have channels" in found.sentence


@pytest.mark.slow
def test_a_remedys_bytes_are_those_of_its_lane() -> None:
    found = inspect_model(small("qwen2"))
    by_name = {remedy.name: remedy for remedy in found.remedies}
    elements = 3 * 2 * 32
    assert by_name["8-bit keys"].extra_bytes == found.bytes_at * elements * 4 // 8
    per_channel = 31 * elements * (16 - 5) / 8  # tokens that wait for a group, at most 31 of them, in fp16
    assert by_name["Keys per channel"].extra_bytes == pytest.approx(per_channel, abs=1)
    assert [Lane.model_validate(remedy.lane).label for remedy in found.remedies] == list(by_name)


@pytest.mark.slow
def test_what_was_found_is_kept_by_the_models_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("llama")
    assert stored_inspection(model) is None
    first = inspect_model(model, remedies=False)
    assert stored_inspection(model) == first
    whole = inspect_model(model)  # remedies were not among what is kept
    monkeypatch.setattr(Look, "inspection", lambda *_: pytest.fail("it is kept"))
    assert inspect_model(model) == inspect_model(model, remedies=False) == whole != first
    assert stored_inspection(replace(model, model_hash="another")) is None
    monkeypatch.setattr("kvq_core.inspection.look.VERSION", 0)
    assert stored_inspection(model) is None


@pytest.mark.slow
def test_a_model_of_a_short_context_is_refused_in_words() -> None:
    model = small("llama")
    model.shape = replace(model.shape, context=200)
    with pytest.raises(ModelError, match=f"takes 200 tokens .* {TOKENS + FORCED + 1} are needed"):
        inspect_model(model)


@pytest.mark.slow
@pytest.mark.parametrize(("head_dim", "group"), [(80, 16), (48, 16), (20, 4)])
def test_heads_that_no_32_channels_divide_are_looked_at(head_dim: int, group: int) -> None:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, head_dim=head_dim)
    model = wrap(AutoModelForCausalLM.from_config(config), None, id=f"heads-of-{head_dim}")
    found = inspect_model(replace(model, tokenizer=Letters()))
    assert len(found.figures) == 2 and found.plain_kld is not None
    lanes = {each.name: Lane.model_validate(each.lane) for each in found.remedies if not each.refused}
    assert lanes["8-bit keys"].knobs["group_size"] == lanes["Centre the keys"].knobs["group_size"] == group


def test_exempting_every_layer_is_no_remedy() -> None:
    three, nine = (ModelShape(layers, 4, 2, 32, 1024) for layers in (3, 9))
    assert not [name for name in remedy_lanes(three, (0, 1, 2)) if "fp16" in name]
    lanes = remedy_lanes(nine, (0, 1, 2, 8))
    assert lanes["Layers 0-2, 8 in fp16"].layers == (3, 4, 5, 6, 7)
    assert {lane.tensors for lane in lanes.values()} == {"keys"} == {plain_lane(nine).tensors}
    assert (spans([4]), spans([0, 1, 3, 4, 5])) == ("4", "0-1, 3-5")


@pytest.mark.slow
def test_the_sentence_names_no_remedy_that_does_not_help() -> None:
    found = inspect_model(small("qwen2", constant=60), remedies=False)
    useless = [Remedy(name="8-bit keys", lane={}, kld=0.9, extra_bytes=1)]
    said = sentence_of(found.facts, found.reasons, useless, 1.0, rules())
    assert "even at 8 bits" in said
    assert said.endswith("No remedy measured here helps enough.")


@pytest.mark.parametrize(
    ("name", "families"),
    [
        ("Qwen/Qwen2.5-Coder-0.5B-Instruct", {"Qwen2 and Qwen2.5"}),
        ("Qwen2.5-7B-Instruct-Q4_K_M", {"Qwen2 and Qwen2.5", "Qwen2.5-7B"}),
        ("Qwen/Qwen3-0.6B", {"small Qwen3"}),
        ("Qwen/Qwen3-32B", set()),
        ("openai/gpt-oss-20b", {"gpt-oss"}),
        ("google/gemma-4-E2B", {"Gemma 4"}),
        ("google/gemma-2-2b", set()),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", set()),
    ],
)
def test_what_is_published_is_told_of_its_family(name: str, families: set[str]) -> None:
    assert {each.family for each in published() if each.meant(name)} == families
    assert all("(" in said and said.split(": ")[0] in families for said in known_of(name))


@pytest.mark.long("programs", sample=0)
def test_the_layers_it_names_are_those_whose_exemption_helps(second_model: str) -> None:
    """Keys and values per token at 3 bits ruin the second model; with the named layers in fp16 they do not."""
    model = load(second_model)
    found = inspect_model(model, remedies=False)
    assert {0, 1, 2, 8} <= set(found.at_risk_layers)
    assert len(found.at_risk_layers) <= 8
    assert {reason.cause for reason in found.reasons} == {"constant"}
    assert max(reason.times for reason in found.reasons) > 30
    left = tuple(layer for layer in range(24) if layer not in found.at_risk_layers)
    plain, exempt = (
        Lane(label=name, method="per_token", knobs={"bits": 3, "residual_length": 0}, layers=layers)
        for name, layers in (("plain", "all"), ("exempt", left))
    )
    klds = Look(model).measured([plain, exempt])
    assert all(isinstance(each, MeasuredRemedy) for each in klds.values())
    assert klds["plain"].kld > 5 * klds["exempt"].kld  # type: ignore[union-attr]


def test_the_bundled_model_has_no_known_risk(smollm: LoadedModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", smollm.id, "--no-remedies", "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (told["at_risk_layers"], told["sentence"]) == ([], NOTHING)
    assert len(told["figures"]) == 30
    assert main(["inspect", smollm.id]) == 0
    shown = capsys.readouterr().out
    for words in (NOTHING, "30 layers, 9 query heads on 3 KV heads (GQA 3)", "Centre the keys", "131,072 tokens"):
        assert words in shown
