"""Mended folders of safetensors: rows are changed, all else is linked."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvq_core.errors import ModelError, StoreError
from kvq_core.mend import folder
from kvq_core.mend.edit import Edit
from kvq_core.mend.fold import mendable_layers, row_factors
from kvq_core.models import wrap
from kvq_core.models.pairs import Pairs
from tests.support.gguf_files import logits, source
from tests.support.mended_models import apply_to

IDS = [(7 * i * i + i) % 200 for i in range(40)]
SAID = {"version": 1, "format": "q8_0/q8_0", "context": 1024}


@pytest.mark.few(sample=1)
@pytest.mark.parametrize("architecture", ["qwen2", "gemma3_text"])  # with biases; with norms that add one
def test_a_mended_folder_computes_what_the_edited_model_does(
    tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_LARGE", 20_000)
    model = source(architecture)
    model.save_pretrained(tmp_path / "old", max_shard_size="50KB")
    (tmp_path / "old").chmod(0o750)
    for file in (tmp_path / "old").iterdir():
        file.chmod(0o640)
    loaded = wrap(model, None, id="x")
    edit = Edit.none(loaded.shape.layers, loaded.shape.kv_heads, loaded.shape.head_dim)
    for layer, own in mendable_layers(loaded).items():
        pairs = Pairs.of_rope(loaded.rope(2), layer)
        drawn = torch.randn(loaded.shape.kv_heads, len(pairs.theta), generator=torch.Generator().manual_seed(layer))
        edit = edit.with_scales(layer, pairs.spread(drawn[:1].expand_as(drawn) if own.shared else drawn).exp())
    edit = edit.with_scales(1, torch.ones_like(edit.scale[1]))  # whose shards are linked
    factors = {name: x.numpy() for name, x in row_factors(loaded, edit).items()}
    offsets = {name: own.offset for own in mendable_layers(loaded).values() for name in own.norms or ()}
    folder.write_copy(tmp_path / "old", factors, offsets, tmp_path / "new", SAID)
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "new", attn_implementation="eager").eval()
    apply_to(loaded, edit)
    loaded.model.set_attn_implementation("eager")
    assert torch.allclose(logits(found, IDS), logits(loaded.model, IDS), rtol=1e-4, atol=1e-4)
    linked = [file.name for file in (tmp_path / "new").iterdir() if file.stat().st_nlink > 1]
    weights = [name for name in linked if name.endswith(".safetensors")]
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "new").iterdir()}
    assert modes.pop(folder.SAID) and set(modes.values()) == {0o640}
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o750
    assert (
        "config.json" not in linked and weights and len(weights) < len(list((tmp_path / "new").glob("*.safetensors")))
    )
    assert json.loads((tmp_path / "new" / folder.SAID).read_text()) == SAID
    with pytest.raises(ModelError, match="mended already, for q8_0/q8_0 and a context of 1,024"):
        folder.check_plain(tmp_path / "new")
    with pytest.raises(StoreError, match="exists"):
        folder.write_copy(tmp_path / "old", factors, offsets, tmp_path / "new", SAID)


@pytest.mark.parametrize("told", ["", "[]", "{}", '{"format": [1], "context": "x"}', "[" * 100_000])
def test_a_mended_folder_is_refused_whatever_it_says(tmp_path: Path, told: str) -> None:
    (tmp_path / folder.SAID).write_text(told)
    with pytest.raises(ModelError, match="mended already, for .* and a context of "):
        folder.check_plain(tmp_path)


def test_a_tensor_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with pytest.raises(ModelError, match="holds 0 tensors for model.q"):
        folder.write_copy(tmp_path / "old", {"model.q": torch.ones(2).numpy()}, {}, tmp_path / "new", SAID)
    assert [place.name for place in tmp_path.iterdir()] == ["old"]
