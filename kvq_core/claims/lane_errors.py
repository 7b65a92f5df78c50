"""How far a lane's cache is from the original: keys, values, scores, attention outputs, predictions.

Errors of tensors are means over layers of each layer's own figure, so that no single layer of large keys decides.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kvq_core.capture.cache_errors import score_error
from kvq_core.claims.lanes import ReadBack
from kvq_core.claims.sample import Sample
from kvq_core.engine.divergence import kl_divergence


def relative_error(read: Tensor, true: Tensor) -> float:
    """||d||_F / ||x||_F of (layers, kv_heads, tokens, head_dim), mean over layers."""
    error = (read - true).flatten(1).norm(dim=1) / true.flatten(1).norm(dim=1).clamp_min(1e-20)
    return error.mean().item()


def mean_score_error(sample: Sample, keys: Tensor, first: int = 0) -> float:
    """``score_error`` of the keys read (layers, kv_heads, prompt, head_dim), mean over layers, for the queries at
    positions ``first`` and later."""
    n, scaling = sample.prompt, sample.model.shape.scaling
    layers = zip(sample.queries, keys, sample.keys, scaling, strict=True)
    errors = [score_error(q[:, first:], read - true[:, :n], factor, first) for q, read, true, factor in layers]
    return torch.stack(errors).mean().item()


def later_attention(sample: Sample, layer: int, keys: Tensor) -> Tensor:
    """Attention weights of a layer's later queries (query_heads, later, tokens) over ``keys`` (kv_heads, prompt,
    head_dim) and the later tokens' own."""
    n, total = sample.prompt, len(sample.ids)
    whole = torch.cat([keys, sample.keys[layer, :, n:]], -2)
    grouped = sample.queries[layer, :, n:].unflatten(0, (len(keys), -1))
    scores = grouped @ whole.unsqueeze(1).transpose(-1, -2) * sample.model.shape.scaling[layer]
    future = torch.ones(total - n, total, dtype=torch.bool, device=scores.device).triu(n + 1)
    return scores.masked_fill(future, -torch.inf).softmax(-1).flatten(0, 1)


def output_error(sample: Sample, held: ReadBack) -> float:
    """||d||_F / ||o||_F of the later queries' attention outputs, each layer by itself on its true input, mean over
    layers."""
    n, errors = sample.prompt, []
    for layer in range(sample.layers):

        def attended(keys: Tensor, values: Tensor, layer: int = layer) -> Tensor:
            whole = torch.cat([values, sample.values[layer, :, n:]], -2)
            weights = later_attention(sample, layer, keys).unflatten(0, (len(keys), -1))
            return weights @ whole.unsqueeze(1)

        true = attended(sample.keys[layer, :, :n], sample.values[layer, :, :n])
        delta = attended(held.keys[layer], held.values[layer]) - true
        errors.append(delta.norm() / true.norm())
    return torch.stack(errors).mean().item()


def predictions(sample: Sample, held: ReadBack) -> dict[str, float]:
    """``kld``: mean KL divergence of the later tokens' predictions from the reference's, nats. ``ppl_ratio``: the
    perplexity of the text's own next tokens over the reference's."""
    log_q = sample.replay(held.keys, held.values).log_softmax(-1)
    log_p = sample.reference_logits.log_softmax(-1)
    kld = kl_divergence(log_p, log_q).mean().item()
    follow = torch.tensor(sample.ids[sample.prompt + 1 :])[:, None]
    nll = (log_p - log_q)[:-1].gather(-1, follow).mean()
    return {"kld": kld, "ppl_ratio": nll.exp().item()}


Metric = Callable[[Sample, ReadBack], float]
METRICS: dict[str, Metric] = {
    "key_error": lambda s, h: relative_error(h.keys, s.keys[..., : s.prompt, :]),
    "value_error": lambda s, h: relative_error(h.values, s.values[..., : s.prompt, :]),
    "score_error": lambda s, h: mean_score_error(s, h.keys),
    "later_score_error": lambda s, h: mean_score_error(s, h.keys, s.prompt),
    "output_error": output_error,
    "kld": lambda s, h: predictions(s, h)["kld"],
    "ppl_ratio": lambda s, h: predictions(s, h)["ppl_ratio"],
    "key_bits": lambda s, h: h.bits("key"),
    "value_bits": lambda s, h: h.bits("value"),
    "megabytes": lambda s, h: sum(h.nbytes.values()) / 1e6,
}
