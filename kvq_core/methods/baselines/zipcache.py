"""ZipCache: tokens that attention looks at often get more bits than the others."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, Method, ModelShape, Prompt
from kvq_core.methods.baselines.classes import ClassCodec
from kvq_core.methods.deployments import Elsewhere
from kvq_core.methods.prompt import stack_queries
from kvq_core.methods.widths import Bits

SEED = 0  # of the random probes
PROBED = 0.05  # share of the queries that probe, last ones, and as many random ones


class ZipCache(Method):
    """The tokens of a KV head that get most attention are stored with salient_bits, the others with other_bits. A
    token's saliency is the mean attention that probe queries behind it pay to it: the last 5% of the prompt's queries,
    and 5% at random.

    Stored: packed codes of both classes and a bit a token and head that names the class. Keys have an fp16 scale and
    minimum a channel over the tokens of a class; values are divided by sqrt(max |v|) of their channel, stored in fp16,
    and have a scale and minimum a token over all heads. An element costs the mean of both widths by salient_fraction,
    1/head_dim for the class, and little more in long blocks.

    The prompt is stored at once. Generated tokens wait in full precision until streaming_gap of them are there; their
    classes come from the attention of the query at hand, and are not looked at again.
    """

    name: ClassVar[str] = "zipcache"
    title: ClassVar[str] = "ZipCache"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2405.14256"
    scales = ("tokens", "channels")
    deviations: ClassVar[tuple[str, ...]] = (
        "Attention to a token is divided by the number of probes that see it; the authors' code divides by all queries "
        "that do, although only probes are summed, which favours recent tokens.",
        "The random probes are drawn with a seed, and at least one query of either kind probes.",
        "Numbers of tokens are rounded; the authors' code cuts them off.",
        "A gap of tokens is stored once, with ranges of its own; the authors' code decodes all and stores all anew, "
        "old tokens from what was read of them.",
        "As in the authors' code, values share a scale across heads by rank: the j-th salient token of every head, "
        "wherever it stands.",
    )

    salient_bits: Bits = Field(4, title="Salient bits", description="Bits of a code of the tokens looked at most.")
    other_bits: Bits = Field(2, title="Other bits", description="Bits of a code of all other tokens.")
    salient_fraction: float = Field(
        0.6, ge=0, le=1, title="Salient fraction", description="Share of the tokens of a head that are salient."
    )
    streaming_gap: int = Field(
        100,
        ge=1,
        le=4096,
        title="Streaming gap",
        description="Tokens that leave full precision together.",
    )

    @property
    def needs_queries(self) -> bool:
        return True

    @property
    def not_chunked(self) -> str | None:
        return "it ranks the tokens of a prompt that has been read whole"

    def windows(self) -> tuple[Window, Window]:
        window = Window(recent=0, step=self.streaming_gap, whole_prompt=True)
        return window, window

    def fit(self, prompt: Prompt) -> Fitted:
        assert prompt.queries is not None
        keys = prompt.keys if prompt.rotated is None else prompt.rotated  # centred keys have other scores
        seen = saliency(prompt.queries, keys, prompt.scaling)
        widths = self.salient_bits, self.other_bits
        key, value = (
            ClassCodec(axis, widths, self.salient_fraction, prompt.metadata, seen) for axis in ("tokens", "channels")
        )
        counts = " and ".join(f"{len(part)}" for part in probes(keys.shape[-2]))
        return Fitted(key, value, (f"saliency measured by {counts} queries of the prompt, its last and random ones",))

    def usage_bytes(self, shape: ModelShape, tokens: int) -> int:
        return super().usage_bytes(shape, tokens) + shape.layers * shape.kv_heads * 4 * tokens

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        said = "Research code for Llama and Mistral classes of an old transformers."
        return (Elsewhere("authors' code", "https://github.com/ThisisBillhe/ZipCache", said),)

    def summary(self) -> str:
        salient = f"{self.salient_fraction:.0%} of the tokens {self.salient_bits} bits"
        return f"{salient}, others {self.other_bits} · every {self.streaming_gap} tokens"

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        return f"{self.name} {self.salient_bits}/{self.other_bits}"


def probes(tokens: int) -> tuple[Tensor, Tensor]:
    """Positions of the queries that probe: the last ones, and random ones, some perhaps twice."""
    count = max(1, round(PROBED * tokens))
    drawn = torch.randint(tokens, (count,), generator=torch.Generator().manual_seed(SEED))
    return torch.arange(tokens - count, tokens), drawn


def saliency(queries: Tensor, keys: Tensor, scaling: tuple[float, ...]) -> Tensor:
    """Mean attention weight of the probes that see a token, summed over the query heads that share a KV head.

    queries (layers, query_heads, tokens, head_dim) and keys (layers, kv_heads, tokens, head_dim) after RoPE, scaling by
    layer -> (layers, kv_heads, tokens) float32. Layer by layer: the weights of all would be larger than the queries.
    """
    heads, tokens = keys.shape[1:3]
    at = torch.cat(probes(tokens)).to(keys.device)
    hidden = torch.arange(tokens, device=keys.device) > at[:, None]  # (probes, tokens)
    seen_by = (~hidden).sum(0)
    found = []
    for q, k, scale in zip(queries, keys, scaling, strict=True):
        scores = (stack_queries(q[None, :, at], heads)[0] @ k.mT * scale).unflatten(1, (-1, len(at)))
        weights = scores.masked_fill_(hidden, float("-inf")).softmax(-1)  # (kv_heads, groups, probes, tokens)
        found.append(weights.sum((1, 2)) / seen_by)
    return torch.stack(found)
