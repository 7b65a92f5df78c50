"""Checkpoints of models that see or hear as well: their language model is read by itself."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast

from benchmarks.architectures import VOCABULARY, eager, ids_of, sized
from kvq_core.errors import ModelError
from kvq_core.models import load
from kvq_core.models.outline import outline

MODELS = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "qwen3_5": "qwen3_5_text",
}
_SMALL = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "depth": 1,
    "num_heads": 2,
    "out_hidden_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "vision_output_dim": 64,
}
IDS = ids_of(40)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("kvq_core.models.loader._held", {})


def saved(kind: str, folder: Path) -> Any:
    """A tiny model of that kind, with a vision tower, in a folder."""
    text = AutoConfig.for_model(MODELS[kind], **sized(MODELS[kind])).to_dict()
    vision = AutoConfig.for_model(kind).vision_config
    seen = None
    if vision is not None:  # of some there is none by default
        given = {name: value for name, value in _SMALL.items() if name in vision.to_dict()}
        seen = type(vision)(**given).to_dict()
    torch.manual_seed(3)
    tied = {"tie_word_embeddings": text.get("tie_word_embeddings", False)}
    config = AutoConfig.for_model(kind, text_config=text, vision_config=seen, **tied)
    model = AutoModelForImageTextToText.from_config(config).float().eval()
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    return model


@pytest.mark.slow
@pytest.mark.few(sample=2)
@pytest.mark.parametrize("kind", MODELS)
def test_the_language_model_is_read_by_itself(tmp_path, kind: str) -> None:
    whole = saved(kind, tmp_path / "m")
    model = load(str(tmp_path / "m"))
    with torch.no_grad():
        expected = whole(input_ids=torch.tensor([IDS])).logits[0, -1].float()
    torch.testing.assert_close(eager(model, IDS), expected, rtol=1e-4, atol=1e-4 * expected.std().item())
    assert not any("vision" in name or "visual" in name for name in model.model.state_dict())
    assert model.shape.kinds == outline(str(tmp_path / "m")).shape.kinds


@pytest.mark.slow
def test_names_as_they_were_published_before_are_known(tmp_path) -> None:
    """And what the language model lacks, or has too much of, is told."""
    folder = tmp_path / "m"
    whole = saved("gemma3", folder)
    weights = {
        name.replace("model.language_model.", "language_model.model."): x for name, x in whole.state_dict().items()
    }
    weights = {name: x.clone() for name, x in weights.items() if name != "lm_head.weight"}
    assert load_file(folder / "model.safetensors").keys()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with torch.no_grad():
        expected = whole(input_ids=torch.tensor([IDS])).logits[0, -1].float()
    torch.testing.assert_close(eager(load(str(folder)), IDS), expected, rtol=1e-4, atol=1e-4)
    some = "language_model.model.layers.1.mlp.up_proj.weight"
    for changed, said in (
        ({k: v for k, v in weights.items() if k != some}, "it lacks model.layers.1.mlp.up_proj.weight"),
        (weights | {some.replace(".1.", ".9."): weights[some]}, "model.layers.9.mlp.up_proj.weight"),
    ):
        save_file({k: v.clone() for k, v in changed.items()}, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(ModelError) as caught:
            load(str(folder))
        assert said in str(caught.value) and "\n" not in str(caught.value)
