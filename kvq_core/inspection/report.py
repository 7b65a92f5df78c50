"""What looking at a model found, as data: facts, figures of a short prefill, remedies, and which layers are at risk."""

from typing import Annotated, Any, Literal

from pydantic import AllowInfNan, BaseModel, ConfigDict

from kvq_core.models.rope import Rotation

Number = Annotated[float, AllowInfNan(False)]
Cause = Literal["constant", "outlier channels"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LayerFacts(_Frozen):
    """One layer, from weights and configuration. ``key_bias``: norm of the key projection's bias, over all KV heads;
    ``key_norm_gain``: rms of the weights of the norm that follows the projection; None where there is none."""

    layer: int
    window: int | None
    rope: Rotation
    key_bias: Number | None
    key_norm_gain: Number | None


class Facts(_Frozen):
    """A model's cache, from weights and configuration alone. ``token_bytes``: of one token in fp16, all layers."""

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
    def usual_bias(self) -> float | None:
        """Median norm of the layers' key biases; None where there are none."""
        norms = sorted(layer.key_bias for layer in self.layers if layer.key_bias is not None)
        return norms[len(norms) // 2] if norms else None


class Format(_Frozen):
    """A cache format at its defaults: stored bytes of contexts by their tokens, or why the model cannot have it."""

    method: str
    title: str
    settings: str
    nbytes: dict[int, int]
    why_not: str | None = None


class LayerFigures(_Frozen):
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


class Remedy(_Frozen):
    """A lane instead of keys per token at 4 bits: ``kld`` its mean KLD over the forced tokens, ``extra_bytes`` what it
    stores more for a context of ``tokens``, ``fixed_bytes`` of these whatever the context. ``refused``: why it cannot
    be had here."""

    name: str
    lane: dict[str, Any]
    kld: Number | None
    extra_bytes: int | None
    fixed_bytes: int = 0
    refused: str | None = None


class Reason(_Frozen):
    """Why a layer is at risk: ``times`` the median layer's constant, or its largest channel over the median channel."""

    layer: int
    cause: Cause
    times: Number
    score_error: Number


class Inspection(_Frozen):
    """All of it. ``at_risk_layers`` is empty where nothing is known; that is no promise. ``plain_kld``: of keys per
    token at 4 bits without a remedy; ``tokens`` prefilled, ``forced_tokens`` scored after them, ``bytes_at`` the
    context that remedies' bytes are told for."""

    version: int
    model: str
    title: str
    model_hash: str
    dtype: str
    facts: Facts
    formats: tuple[Format, ...]
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
