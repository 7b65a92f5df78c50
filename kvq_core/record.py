"""The record of a finished run: what is stored, linked, drawn and exported.

Arrays too large for JSON lie beside it in ``arrays.safetensors`` under the names listed in ``ARRAYS``. Every quantity
says its unit here once; ``S`` scored positions, ``L`` layers, ``H`` KV heads, ``Q`` query heads, ``D`` head_dim,
``T`` tokens at the end of the run.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1

ARRAYS = {
    # of the run
    "reference/nll": "(S,) nats, of the followed token under the reference",
    "reference/margin": "(S,) logits, the reference's top1 - top2",
    "reference/topk_ids": "(S, 5) int32",
    "reference/topk_probs": "(S, 5)",
    "spectra/key_pre": "(L, H, D) singular values of the prompt's keys before RoPE, largest first",
    "spectra/key_post": "(L, H, D) the same after RoPE",
    "spectra/key_pre_concat": "(L, H * D) heads of a layer concatenated",
    "spectra/key_post_concat": "(L, H * D)",
    "subspace/deviation_prompt": "(L, H, D + 1) mean deviation of normalized queries of all tokens from the top-r "
    "subspace of prompt queries, r = 0 .. D (SQuat, Definition 1)",
    "subspace/deviation_all": "(L, H, D + 1) the same, subspace of all queries of the run",
    # of lane i (its index in `lanes`), or "lane/noise/..." for the noise floor
    "lane/{i}/kld": "(S,) nats, KL(reference || lane) of a forced row",
    "lane/{i}/nll": "(S,) nats, of the followed token",
    "lane/{i}/delta_p": "(S,) probability of the followed token, lane - reference, as a fraction",
    "lane/{i}/same_top": "(S,) uint8, 1 where lane and reference have the same most probable token",
    "lane/{i}/topk_ids": "(S, 5) int32",
    "lane/{i}/topk_probs": "(S, 5)",
    "lane/{i}/delta_mean": "(L, Q, S) mean |score delta| over quantized positions, own query, centred per row",
    "lane/{i}/delta_max": "(L, Q, S) maximum of the same",
    "lane/{i}/delta_reference_query": "(L, Q, S) mean |score delta| with the reference's query: the keys' error alone",
    "lane/{i}/delta_map": "(M, Q', B, P) int8, signed extreme of the centred delta in each step x position bin; "
    "M, Q' as in capture.layers, capture.heads",
    "lane/{i}/delta_scale": "(M, Q') multiply the int8 map by this",
    "lane/{i}/key_error": "(L, H) ||dK||_F / ||K||_F after RoPE at the end of the run",
    "lane/{i}/value_error": "(L, H)",
    "lane/{i}/key_error_energy": "(L, H, D) squared key error along each right singular direction of the prompt's "
    "queries, strongest direction first; sums to ||dK||_F^2",
    "lane/{i}/output_error": "(L, Q) ||change of the attention output||_2 at the reference's last query",
    "lane/{i}/output_bound": "(L, Q) upper bound of it (SQuat, Theorem 1, with ||V||_F as its proof has it)",
    "lane/{i}/key_bits": "(L or 1, H or 1, T, C) stored bits of each key element, metadata included",
    "lane/{i}/value_bits": "(L or 1, H or 1, T, C)",
}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Environment(_Part):
    """Where and with what the run was computed."""

    versions: dict[str, str]
    device: str
    dtype: str
    model: str
    model_title: str
    weights_hash: str
    revision: str | None
    seed: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    attention: str = "kvq lock-step"


class Reference(_Part):
    """The full-precision row and the prompt all rows share."""

    text: str
    token_ids: list[int]
    tokens: list[str]  # text pieces; concatenated they are `text`
    prompt_token_ids: list[int]
    prompt_tokens: list[str]
    finish: Literal["eos", "length", "continuation"]
    ppl: float | None


class Interval(_Part):
    """A mean with its standard error (sigma / sqrt(n), as llama-perplexity prints it)."""

    value: float | None  # None: not finite
    se: float | None


class Metrics(_Part):
    """Forced rows: same tokens as the reference, temperature-1 logits in fp32, nats. Free rows: own tokens.

    Names and order of ``perplexity_block`` follow llama-perplexity's report.
    """

    n_scored: int
    kld_mean: float | None = None
    kld_median: float | None = None
    kld_p99: float | None = None
    kld_max: float | None = None
    flip_rate: float | None = None
    ppl_ratio: float | None = None
    rms_dp: float | None = None  # percent
    perplexity_block: dict[str, Interval] = {}
    first_divergence: int | None = None  # token index; None: the texts are equal
    matched_prefix: int = 0  # tokens
    flips: int = 0
    near_tie_flips: int = 0  # flips where the reference's own margin was below near_tie_margin
    near_tie_margin: float = 0.0  # logits
    attention_delta_mean: float | None = None
    attention_delta_max: float | None = None
    attention_delta_reference_query: float | None = None
    key_rmse: float | None = None
    value_rmse: float | None = None
    in_subspace_error: float | None = None
    output_error: float | None = None  # ||d attention output||_2 at the reference's last query, mean over query heads
    output_bound: float | None = None  # what Theorem 1 of SQuat allows it to be
    layers_quantized: int = 0
    tokens_quantized: int = 0


class Memory(_Part):
    """Stored bytes of the lane's cache at the end of the forced row, counted from the tensors held."""

    key_bits: float
    value_bits: float
    key_bits_quantized: float | None
    value_bits_quantized: float | None
    bytes_by_part: dict[str, int]
    shared_bytes: int  # model-wide tensors such as codebooks: beside the cache, in no ratio
    encoder_bytes: int  # state only the encoder reads (SQuat's update matrices): beside the cache, in no ratio
    kv_ratio: float  # stored bytes over those of the fp16 cache
    tokens: int


class Timing(_Part):
    """Seconds on this machine. The engine simulates the cache's arithmetic on a working copy: not a kernel's speed."""

    encode_prompt_s: float
    encode_decode_s: float
    simulated: bool = True


class LaneRecord(_Part):
    label: str
    method: str
    title: str
    summary: str
    knobs: dict[str, Any]
    tensors: str
    layers: Any
    sink_tokens: int | None
    recent_tokens: int | None
    status: Literal["done", "failed"]
    error: str | None = None
    notes: list[str] = []
    flags: list[str] = []  # never_engaged, nan, partly_engaged, too_few_positions
    text: str = ""
    token_ids: list[int] = []
    tokens: list[str] = []
    finish: Literal["eos", "length", "continuation"] | None = None
    metrics: Metrics | None = None
    memory: Memory | None = None
    timing: Timing | None = None


class CaptureInfo(_Part):
    """Axes of the captured arrays."""

    detail: str
    layers: list[int]  # layers of delta_map
    heads: list[int]  # query heads of delta_map
    step_edges: list[int]  # scored positions, length B + 1
    position_edges: list[int]  # key positions, length P + 1
    topk: int


class RunTiming(_Part):
    """Seconds of the stages of the whole run."""

    prefill_s: float
    encode_s: float
    decode_s: float
    steps: int
    ms_per_step: float | None
    rows_mean: float  # rows in the batch, averaged over steps
    total_s: float


class Record(_Part):
    schema_version: int = SCHEMA_VERSION
    id: str
    results_version: int
    created: str  # ISO 8601, UTC
    spec: dict[str, Any]
    environment: Environment
    reference: Reference
    noise_floor: LaneRecord
    lanes: list[LaneRecord]
    capture: CaptureInfo
    timing: RunTiming
    vocabulary: dict[int, str] = {}  # text of every token id in the top-k arrays
    notes: list[str] = []
