"""The head apart from the layers: the model's own logits, and memory that does not grow with length."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Cohere2Config, CohereConfig, Gemma2Config, GraniteConfig

from kvq_core.engine.fidelity import Fidelity
from kvq_core.models.head import POSITIONS, logits_of
from kvq_core.models.scoring import causal_attention
from kvq_core.spec import Lane
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import CONFIGS, SCALED, VOCABULARY, prompt_ids, tiny

# what their forward does after the layers, at values that show
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2, "pad_token_id": 0}
AFTERWARDS = {
    "gemma2": (Gemma2Config, {"final_logit_softcapping": 2.0}),
    "granite": (GraniteConfig, {"logits_scaling": 7.0}),
    "cohere": (CohereConfig, {"logit_scale": 0.3}),
    "cohere2": (Cohere2Config, {"logit_scale": 0.3}),
}


def _attend(layer: int, *call: torch.Tensor) -> torch.Tensor:
    return causal_attention(*call)


@pytest.mark.parametrize("name", [*CONFIGS, *SCALED])
def test_head_of_hidden_is_the_whole_model_to_the_bit(name: str) -> None:
    model, ids = tiny(name), torch.tensor([prompt_ids(13), prompt_ids(13, seed=1)])
    hidden = model.hidden(ids, 0, _attend)
    assert torch.equal(model.head(hidden), model.forward(ids, 0, _attend))


@pytest.mark.parametrize("name", AFTERWARDS)
def test_soft_caps_and_scalings_are_the_models_own(name: str) -> None:
    kind, options = AFTERWARDS[name]
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(kind(**SMALL | options)).eval()
    network.set_attn_implementation("eager")
    ids = torch.tensor([prompt_ids(13)])
    with torch.no_grad():
        whole = network(ids, use_cache=False).logits
        hidden = network.base_model(ids, use_cache=False).last_hidden_state
    with torch.no_grad():
        found, bare = logits_of(network, hidden), network.get_output_embeddings()(hidden)
    assert torch.equal(found, whole) and not torch.allclose(bare, whole, atol=1e-3)


@pytest.mark.parametrize("part", [1, 7, 64])
def test_streamed_scores_are_those_of_the_whole(part: int) -> None:
    torch.manual_seed(0)
    reference = 2 * torch.randn(64, 501)
    lanes = reference + 0.3 * torch.randn(3, 64, 501)
    whole, streamed = Fidelity(3), Fidelity(3)
    targets = torch.randint(0, 501, (64,)).tolist()
    whole(reference, lanes, targets)
    for start in range(0, 64, part):
        now = slice(start, start + part)
        streamed(reference[now], lanes[:, now], targets[now])
    for name in ("kld", "nll", "delta_p", "same_top", "acceptance", "topk_ids", "topk_probs"):
        assert all(torch.equal(whole.column(name, lane), streamed.column(name, lane)) for lane in range(3)), name
    assert torch.equal(whole.column("reference/margin"), streamed.column("reference/margin"))
    assert streamed.latest("kld", 1, 60) == whole.column("kld", 1)[60:].tolist()
    assert streamed.latest("kld", 1, 64) == []


@pytest.mark.parametrize("chunk", [7, 64])
def test_chunks_are_scored_a_few_positions_at_once(chunk: int) -> None:
    """Every position once and in order, and never more logits than of POSITIONS."""
    model, ids, follow = tiny("qwen2"), prompt_ids(20), prompt_ids(60, seed=1)
    found = run_engine(model, ids, [Lane(label="fp16", method="fp16")], 1, follow=follow, score_chunk=chunk)
    assert max(len(part) for part in found.reference) == min(chunk, POSITIONS)
    assert all(part.shape[-1] == VOCABULARY for part in found.reference)
    whole = model.forward(torch.tensor([[*ids, *follow[:-1]]]), 0, _attend)[0, len(ids) :]
    torch.testing.assert_close(torch.cat(found.reference), whole, atol=1e-3, rtol=1e-3)
