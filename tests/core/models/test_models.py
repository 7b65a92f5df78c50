"""Which models are taken, which are refused and why; text pieces."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig
from transformers.utils.chat_template_utils import render_jinja_template

from kvq_core.capture.other_prompts import other_prompts
from kvq_core.errors import ModelError, SpecError
from kvq_core.models import load, loaded_model, loader, wrap
from kvq_core.models.text import Pieces
from kvq_core.spec import DEFAULT_MODEL
from tests.conftest import HELD, pytest_runtest_teardown
from tests.support.tiny_models import generate, prompt_ids, tiny

SMALL = {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def config_of(kind: str, **values: object) -> object:
    return AutoConfig.for_model(kind, **values)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (lambda: config_of("deepseek_v3", **SMALL, q_lora_rank=8, kv_lora_rank=8), "latent attention"),
        (lambda: config_of("t5", d_model=32, num_layers=1, num_heads=2), "encoder-decoder"),
        (
            lambda: LlamaConfig(**SMALL, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
            "dyn",
        ),
        (lambda: config_of("recurrent_gemma", **SMALL), "its layers are not known"),
        (lambda: GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=32), "its layers are not known"),
    ],
    ids=["mla", "encoder-decoder", "dynamic-rope", "unknown-state", "words-of-its-own"],
)
def test_models_the_engine_would_change_are_refused(config, reason: str) -> None:
    built = config()
    kind = type("Model", (torch.nn.Module,), {})  # architectures refused by their config need no weights
    model = kind()
    model.config = built  # type: ignore[assignment]
    with pytest.raises(ModelError, match=reason) as caught:
        wrap(model, None, id="refused")
    assert "\n" not in str(caught.value)


def test_a_layer_that_does_something_else_than_its_configuration_says_is_refused() -> None:
    """One truth for the kinds of layers: what a window, a head or a kind is called elsewhere must be what is done."""
    model = AutoModelForCausalLM.from_config(config_of("gpt_neox", **{**SMALL, "num_key_value_heads": 1}))
    with pytest.raises(ModelError, match=r"layer 0 has kv_heads, key and value channels \(2, 16, 16\), and") as caught:
        wrap(model, None, id="refused")
    assert "docs/models.md" in str(caught.value)


def test_loading_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a GPU is lent for one call at a time, a forward pass at load time would have no device to run on."""
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL))
    monkeypatch.setattr(model, "forward", lambda *_, **__: pytest.fail("the model ran"))
    assert wrap(model, None, id="idle").shape.layers == 1


@pytest.mark.parametrize("damage", ["cut", "garbage", "sizes"])
def test_damaged_weights_are_one_line(tmp_path, damage: str) -> None:
    AutoModelForCausalLM.from_config(LlamaConfig(**SMALL)).save_pretrained(tmp_path)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    if damage == "sizes":
        config.write_text(config.read_text().replace('"hidden_size": 32', '"hidden_size": 64'))
    else:
        weights.write_bytes(weights.read_bytes()[:3000] if damage == "cut" else b"\xff" * 2000)
    with pytest.raises(ModelError, match="could not be loaded: .*Check its id or folder") as caught:
        load(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_what_lies_on_this_machine_has_no_revisions(tmp_path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for id in (DEFAULT_MODEL, str(tmp_path)):
        with pytest.raises(ModelError, match="revision = 'main'.*leave it out"):
            load(id, "main")


def test_a_sliding_window_is_the_layers_and_no_bound_of_the_context() -> None:
    config = MistralConfig(**SMALL, num_key_value_heads=1, max_position_embeddings=1024, sliding_window=48)
    model = wrap(AutoModelForCausalLM.from_config(config), None, id="window")
    assert model.shape.context == 1024 and model.shape.windowed == (0,) and model.shape.kinds[0].window == 48
    assert tiny("mistral").shape.full == (0, 1, 2)


@pytest.mark.parametrize(
    ("id", "said"),
    [
        ("../../etc/passwd", "not a model directory"),
        ("/etc", "not a model directory"),
        ("a b/c", "not valid"),
        ("owner/name/more", "not valid"),
        ("\x00\x01", "not valid"),
        ("no-such-owner/no-model", "could not be loaded"),
    ],
)
def test_bad_model_ids_get_one_line(id: str, said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        load(id)
    assert "\n" not in str(caught.value) and "Traceback" not in str(caught.value)


def test_an_allow_list_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVQ_MODELS", "some/model")
    with pytest.raises(ModelError, match="not offered on this instance; available: some/model"):
        load(DEFAULT_MODEL)


def test_a_public_instance_takes_no_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """refs/pr/1 of a known model is what anybody proposed to change in it."""
    monkeypatch.setenv("KVQ_MODELS", "some/model")
    with pytest.raises(ModelError, match="Revision 'refs/pr/1' is not offered"):
        load("some/model", "refs/pr/1")


@pytest.mark.usefixtures("real_model")
def test_the_model_in_memory_is_known() -> None:
    held = load(DEFAULT_MODEL)  # another test may have loaded another one since
    assert loaded_model() is held is load(DEFAULT_MODEL)
    with pytest.raises(ModelError):
        load("no-such-owner/no-model")
    assert loaded_model() is held


def test_a_test_that_loads_the_bundled_model_and_is_not_marked_fails(monkeypatch) -> None:
    monkeypatch.setattr(loader, "_load", lambda *_: None)
    monkeypatch.setattr(loader, "_held", {})
    monkeypatch.setattr(loader, "in_memory", lambda id: [id] if loader._held else None)
    stash = pytest.Stash()
    stash[HELD] = {}  # this test's own may have none: pages were open before it
    load(DEFAULT_MODEL)
    ending = pytest_runtest_teardown(SimpleNamespace(stash=stash))
    next(ending)
    with pytest.raises(pytest.fail.Exception, match="mark it real_model"):
        next(ending)


def test_the_models_attention_is_not_left_usable_by_accident() -> None:
    with pytest.raises(ModelError, match="set_attn_implementation"):
        tiny("llama").model(torch.tensor([[1, 2, 3]]))
    assert len(generate(tiny("llama"), prompt_ids(5), 3)) == 3  # and set back, transformers is itself again


def test_chat_template_and_system_message(smollm) -> None:
    default = smollm.tokenizer.decode(smollm.render("Hi", None, True))
    none = smollm.tokenizer.decode(smollm.render("Hi", "", True))
    own = smollm.tokenizer.decode(smollm.render("Hi", "Be brief.", True))
    assert "helpful AI assistant" in default and "helpful AI assistant" not in none and "Be brief." in own
    assert default.endswith("<|im_start|>assistant\n")
    assert smollm.tokenizer.decode(smollm.render("Hi", None, False)) == "Hi"


class Templated:
    """A tokenizer of which nothing but the template matters."""

    def __init__(self, template: str):
        self.chat_template = template

    def apply_chat_template(self, messages: list[dict[str, str]], **options: object) -> str:
        return render_jinja_template([messages], chat_template=self.chat_template, add_generation_prompt=True)[0][0]

    def __call__(self, text: str, **options: object) -> dict[str, list[str]]:
        return {"input_ids": [text]}


# what Gemma's and Mistral's do, what others do, and what a broken one does
REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
EACH = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}"
OF_USERS = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"


def test_a_template_that_refuses_is_one_line() -> None:
    model = replace(tiny("llama"), tokenizer=Templated(REFUSING + EACH))
    with pytest.raises(
        SpecError, match="refuses this conversation: System role not supported. .*leave system out"
    ) as e:
        model.render("Hi", "Be brief.", True)
    assert "\n" not in str(e.value)
    assert model.render("Hi", None, True) == ["<user>Hi"] == model.render("Hi", "", True)  # none is asked for
    broken = replace(tiny("llama"), tokenizer=Templated("{{ messages.nothing.at_all }}"))
    with pytest.raises(SpecError, match="refuses this conversation: .*set chat = false"):
        broken.render("Hi", None, True)


def test_a_template_that_drops_what_it_is_given_is_noticed() -> None:
    model = replace(tiny("llama"), tokenizer=Templated(OF_USERS))
    with pytest.raises(SpecError, match="leaves out the system text or changes it. To go on, leave system out"):
        model.render("Hi", "Be brief.", True)
    assert model.render("Hi", "", True) == model.render("Hi", None, True) == ["Hi"]
    with pytest.raises(SpecError, match="leaves out the user text .*set chat = false"):
        replace(model, tokenizer=Templated("{{ bos }}")).render("Hi", None, True)
    trimming = replace(model, tokenizer=Templated(EACH))
    assert trimming.render(" Hi\n", " Be brief. ", True) == ["<system>Be brief.<user>Hi"]


def test_captures_do_without_a_template_that_refuses() -> None:
    """A run with chat = false is what a refused conversation is told to become."""
    model = replace(tiny("llama"), tokenizer=Templated("{{ raise_exception('never') }}"))
    assert "without a chat template" in other_prompts(model, False)["other_kind"].description


def test_pieces_join_to_the_text(smollm) -> None:
    text = "Zażółć gęślą jaźń 🦜 — naïve «quotes»\n\n  indented\tcode = [1, 2]"
    ids = smollm.encode(text)
    pieces = Pieces(smollm.tokenizer)
    for count in range(1, len(ids) + 1):
        assert len(pieces.extend(ids[:count])) == count
    assert "".join(pieces.pieces) == smollm.tokenizer.decode(ids) == text
    assert "\ufffd" not in "".join(pieces.pieces)


def test_no_template_is_said() -> None:
    class Bare:
        chat_template = None

    model = tiny("qwen3")
    model.tokenizer = Bare()
    with pytest.raises(SpecError, match="chat = false"):
        model.render("Hi", None, True)
    model.tokenizer = None
