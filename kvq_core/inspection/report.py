"""What looking at a model found, as data: facts, figures of a short prefill, remedies, and which layers are at risk."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AllowInfNan

from kvq_core.frozen import Frozen
from kvq_core.models.rope import Rotation
from kvq_core.shape import Kind

Number = Annotated[float, AllowInfNan(False)]
Cause = Literal["constant", "outlier channels"]


class LayerFacts(Frozen):
    """One layer, from weights and configuration. ``kind``: of which tokens it keeps keys and values, see LayerKind;
    ``state``: whether it keeps a state of linear attention, a state space or a convolution; ``reads``: the layer whose
    keys and values it reads instead of its own; ``sinks``: whether its softmax counts weights that are of no token;
    ``softcap``: the bound of its scores; ``rope_base``: None where there is none, or it is not known. ``key_bias``:
    norm of the key projection's bias, over all KV heads; ``key_norm_gain``: rms of what the norm that follows the
    projection multiplies with; None where there is none."""

    layer: int
    kind: Kind
    window: int | None
    state: bool
    reads: int | None
    sinks: bool
    softcap: Number | None
    rope: Rotation
    rope_base: Number | None
    key_bias: Number | None
    key_norm_gain: Number | None

    def unlike(self, base: float | None) -> list[str]:
        """What it is instead of full attention with RoPE of that base over keys of its own."""
        keyed = self.kind != "none"
        told = {
            f"windows of {self.window} tokens": self.kind == "sliding",
            f"chunks of {self.window} tokens": self.kind == "chunked",
            "state": self.state,
            "no attention": not keyed and not self.state and self.reads is None,
            f"reading the keys of layer {self.reads}": self.reads is not None,
            "without RoPE": keyed and self.rope == "none",
            "rotated in an unknown way": keyed and self.rope == "unknown",
            f"RoPE base {self.rope_base or 0:,.0f}": keyed
            and self.rope == "rope"
            and self.rope_base not in (None, base),
            "attention sinks": self.sinks,
            f"soft-cap {self.softcap or 0:g}": self.softcap is not None,
        }
        return [name for name, holds in told.items() if holds]


class CacheFacts(Frozen):
    """A model's cache, from weights and configuration alone. ``rope`` and ``rope_base``: of its layers of full
    attention, where kinds of layers differ. ``token_bytes``: of one token in fp16, all layers."""

    architecture: str
    layers: tuple[LayerFacts, ...]
    query_heads: int
    kv_heads: int
    query_groups: int
    head_dim: int
    context: int
    rope: str
    rope_base: Number | None
    token_bytes: int

    @property
    def unlike(self) -> dict[str, list[int]]:
        """Layers that are not full attention with RoPE over keys of their own, by what they are instead."""
        found: dict[str, list[int]] = {}
        for layer in self.layers:
            for name in layer.unlike(self.rope_base):
                found.setdefault(name, []).append(layer.layer)
        return found

    @property
    def usual_bias(self) -> float | None:
        """Median norm of the layers' key biases; None where there are none."""
        norms = sorted(layer.key_bias for layer in self.layers if layer.key_bias is not None)
        return norms[len(norms) // 2] if norms else None


class FormatBytes(Frozen):
    """A cache format at its defaults: stored bytes of contexts by their tokens, or why the model cannot have it.
    ``counted``: what of them follows from random numbers, and what lies beside them that belongs to the model."""

    method: str
    title: str
    settings: str
    nbytes: dict[int, int]
    counted: tuple[str, ...] = ()
    why_not: str | None = None


class LayerFigures(Frozen):
    """One layer of the prefill. ``constant``: the mean key before RoPE over the root mean square of what varies around
    it; ``key_outliers``: largest over median rms of a head's key channels after RoPE; ranks: effective rank
    (exponential of the spectrum's entropy) of the centred keys before RoPE and of the values, heads side by side;
    ``first_tokens``: share of the last queries' attention that goes to the first FIRST tokens; score errors: root
    mean square change of a score, centred per query, in nats, by keys per token at 4 bits, as they are and centred."""

    layer: int
    constant: Number | None
    key_outliers: Number
    key_rank: Number
    value_rank: Number
    first_tokens: Number
    score_error: Number
    centred_score_error: Number | None


class Remedy(Frozen):
    """A lane instead of keys per token at 4 bits: ``kld`` its mean KLD over the forced tokens, ``extra_bytes`` what it
    stores more for a context of ``tokens``, ``fixed_bytes`` of these whatever the context. ``refused``: why it cannot
    be had here."""

    name: str
    lane: dict[str, Any]
    kld: Number | None
    extra_bytes: int | None
    fixed_bytes: int = 0
    refused: str | None = None


class Reason(Frozen):
    """Why a layer is at risk: ``times`` the median layer's constant, or its largest channel over the median channel."""

    layer: int
    cause: Cause
    times: Number
    score_error: Number


class Inspection(Frozen):
    """All of it. ``at_risk_layers`` is empty where nothing is known; that is no promise. ``plain_kld``: of keys per
    token at 4 bits without a remedy; ``tokens`` prefilled, ``forced_tokens`` scored after them, ``bytes_at`` the
    context that remedies' bytes are told for."""

    version: int
    model: str
    title: str
    model_hash: str
    dtype: str
    facts: CacheFacts
    formats: tuple[FormatBytes, ...]
    sentence: str
    at_risk_layers: tuple[int, ...]
    reasons: tuple[Reason, ...]
    figures: tuple[LayerFigures, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    plain_kld: Number | None = None
    tokens: int = 0
    forced_tokens: int = 0
    bytes_at: int = 0
    published: tuple[str, ...] = ()
    quantization: str | None = None  # how a GGUF file holds the weights, and what it was mended for


def spans(layers: Sequence[int]) -> str:
    """``0-2, 8`` of sorted layer numbers."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
