"""Small models with random weights, made in memory: methods are tried on them."""

from functools import cache

import torch

from kvq_core.models.loaded import LoadedModel
from kvq_core.models.loader import wrap

VOCABULARY = 96
CONTEXT = 4096


@cache
def tiny(head_dim: int) -> LoadedModel:
    """A Llama of six layers, four query heads and two KV heads, the same every time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=CONTEXT,
        initializer_range=0.15,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = LlamaForCausalLM(config).eval()
    return wrap(model, None, id=f"tiny-{head_dim}", title=f"a random model of head_dim {head_dim}")
