"""The record of a finished run: what is stored, linked, drawn and exported.

Arrays too large for JSON lie beside it in ``arrays.safetensors`` under the names listed in ``ARRAYS``. Every quantity
says its unit here once; ``S`` scored positions, ``L`` layers, ``H`` KV heads, ``Q`` query heads, ``D`` head_dim,
``T`` tokens at the end of the run; ``M``, ``Q'`` the layers and query heads of capture.layers and capture.heads;
``A`` the scored positions in capture.attention_steps, ``P`` the position bins of capture.position_edges, ``B`` the
buckets of key position in capture.depth_edges, ``N`` the layers in capture.distribution_layers, ``F`` the quantile
levels in capture.quantiles, ``R`` the ranks in capture.angle_ranks. Every array is optional: a run with captures off,
or an older one, has fewer, and a reader says "not captured in this run".
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 3  # of record and manifest; raised when a field changes, with a step in migrate.py
RESULTS_VERSION = 5  # raised whenever a change alters results, so that stored runs are not taken for new ones

ARRAYS = {
    # of the run
    "reference/nll": "(S,) nats, of the followed token under the reference",
    "reference/margin": "(S,) logits, the reference's top1 - top2",
    "reference/topk_ids": "(S, 5) int32",
    "reference/topk_probs": "(S, 5)",
    "centred/key_pre": "(L, H, D) singular values of the prompt's keys before RoPE, less their mean over the prompt, "
    "largest first",
    "centred/key_post": "(L, H, D) the same after RoPE",
    "centred/key_pre_concat": "(L, H * D) heads of a layer concatenated: what SVDq decomposes",
    "centred/key_post_concat": "(L, H * D)",
    "centred/value": "(L, H, D) of the prompt's values (RoPE does not touch them)",
    "centred/value_concat": "(L, H * D)",
    "mean/key_pre": "(L, H) size of the mean in the same units: root of the prompt's tokens times the norm of the mean "
    "key before RoPE; its square and those of the singular values sum to ||K||_F^2",
    "mean/key_post": "(L, H) the same after RoPE",
    "mean/value": "(L, H)",
    "spectra/key_quantiles": "(N, H * D, F) quantiles over the prompt's tokens of each key channel before RoPE, heads "
    "side by side (SVDq, Figure 1)",
    "spectra/latent_quantiles": "(N, H * D, F) the same of each latent channel: centred keys times the right singular "
    "vectors of the layer, strongest first (SVDq, Figure 2)",
    "reference/key_channel_energy": "(L, H, D) squared size of each key channel after RoPE, summed over T; sums to "
    "||K||_F^2",
    "reference/value_channel_energy": "(L, H, D)",
    "reference/sink_mass": "(A, L, Q) attention mass on the first capture.sink_tokens tokens, as a fraction",
    "reference/attention_rows": "(A, M, Q', P) uint8 u: attention mass in each position bin, (u / 255)^2",
    "gaussian/key_post": "(L, H, D) eigenvalues of the covariance of the reference's keys after RoPE over T, largest "
    "first; what reverse water-filling needs",
    "gaussian/key_pre": "(L, H, D) the same before RoPE",
    "gaussian/value": "(L, H, D)",
    "gaussian/bits": "(G,) bits an element at which the reference curves are given",
    "gaussian/key_error": "(G,) relative error ||dK||_F / ||K||_F, mean over layers as key_rmse is, of a Gaussian "
    "source with those covariances before RoPE at its rate-distortion limit: a reference, not a bound",
    "gaussian/value_error": "(G,)",
    "subspace/deviation_prompt": "(L, H, D + 1) mean deviation of normalized queries of all tokens from the top-r "
    "subspace of prompt queries, r = 0 .. D (SQuat, Definition 1)",
    "subspace/deviation_all": "(L, H, D + 1) the same, subspace of all queries of the run",
    "subspace/deviation_same_kind": "(L, H, D + 1) the same, subspace of another prompt's queries; the prompt is "
    "told in capture.subspace_texts",
    "subspace/deviation_other_kind": "(L, H, D + 1) the same, of a prompt of another kind",
    "subspace/angles_query_key": "(L, H, R, max rank) principal angles in degrees, smallest first, between the top-r "
    "right singular subspaces of the prompt's queries and of all keys after RoPE; entries beyond r are 90",
    # of lane i (its index in `lanes`), or "lane/noise/..." for the noise floor
    "lane/{i}/kld": "(S,) nats, KL(reference || lane) of a forced row",
    "lane/{i}/nll": "(S,) nats, of the followed token",
    "lane/{i}/delta_p": "(S,) probability of the followed token, lane - reference, as a fraction",
    "lane/{i}/same_top": "(S,) uint8, 1 where lane and reference have the same most probable token",
    "lane/{i}/topk_ids": "(S, 5) int32",
    "lane/{i}/topk_probs": "(S, 5)",
    "lane/{i}/delta_mean": "(L, Q, S) mean |score delta| over quantized positions, own query, centred per row",
    "lane/{i}/delta_max": "(L, Q, S) maximum of the same",
    "lane/{i}/delta_by_keys": "(A, L, Q) mean |score delta| over quantized positions with the reference's query, "
    "centred per row: what the keys' error alone does",
    "lane/{i}/delta_offset": "(L, Q, S) mean score delta that centring took from each row; centred + this = uncentred",
    "lane/{i}/delta_map": "(M, Q', steps, P) int8, signed extreme of the centred delta in each bin of step x position",
    "lane/{i}/delta_scale": "(M, Q') multiply the int8 map by this",
    "lane/{i}/key_error": "(L, H) ||dK||_F / ||K||_F after RoPE at the end of the run",
    "lane/{i}/value_error": "(L, H)",
    "lane/{i}/key_channel_error": "(L, H, D) squared key error of each channel after RoPE, summed over T; sums to "
    "||dK||_F^2",
    "lane/{i}/value_channel_error": "(L, H, D)",
    "lane/{i}/depth_key_error": "(L, H, B) ||dK||_F / ||K||_F in each bucket of key position, end of the run",
    "lane/{i}/depth_value_error": "(L, H, B)",
    "lane/{i}/depth_score_error": "(L, Q, B) mean |score delta| in each bucket over the steps A, own query, centred",
    "lane/{i}/attention_kl": "(A, L, Q) nats, KL(reference's attention || lane's), forced rows, own query; of a lane "
    "that leaves keys out KL(lane's || reference's)",
    "lane/{i}/sink_mass": "(A, L, Q) attention mass on the first capture.sink_tokens tokens, lane - reference",
    "lane/{i}/attention_rows": "(A, M, Q', P) uint8 as the reference's",
    "lane/{i}/output_relative": "(L, Q) ||dO||_F / ||O||_F of the attention output, end of the run, over the "
    "reference's queries of the steps A",
    "lane/{i}/key_quantiles": "(N, H * D, F) as spectra/key_quantiles, of the lane's keys",
    "lane/{i}/latent_quantiles": "(N, H * D, F) the lane's keys in the reference's latent channels",
    "lane/{i}/centred_key": "(L, H, D) singular values of all of the lane's keys after RoPE, as read, less their mean",
    "lane/{i}/angles_query_key": "(L, H, R, max rank) degrees, as subspace/angles_query_key, with the lane's keys",
    "lane/{i}/angles_key_key": "(L, H, R, max rank) degrees, between the reference's keys and the lane's",
    "lane/{i}/key_code_counts": "(L, H, codebooks, codes) how often each stored code is used; 0: a dead code",
    "lane/{i}/value_code_counts": "(L, H, codebooks, codes)",
    "lane/{i}/key_symmetric_share": "(L, H) share of quantized groups stored with a symmetric code",
    "lane/{i}/value_symmetric_share": "(L, H)",
    "lane/{i}/key_outlier_share": "(L, H) share of stored elements kept apart in full precision as outliers",
    "lane/{i}/value_outlier_share": "(L, H)",
    "lane/{i}/key_latent_bits": "(L, H * D) code bits of each latent channel, strongest first (per head: head by head)",
    "lane/{i}/key_error_energy": "(L, H, D) squared key error along each right singular direction of the prompt's "
    "queries, strongest direction first; sums to ||dK||_F^2",
    "lane/{i}/output_error": "(L, Q) ||change of the attention output||_2 at the reference's last query",
    "lane/{i}/output_bound": "(L, Q) upper bound of it (SQuat, Theorem 1, with ||V||_F as its proof has it); lanes "
    "that leave keys out have none",
    "lane/{i}/key_bits": "(L or 1, H or 1, T, C) stored bits of each key element, metadata included",
    "lane/{i}/value_bits": "(L or 1, H or 1, T, C)",
}

# Runs of results version 5 and older have ``spectra/key_pre`` and so on in place of ``centred/key_pre``, and a lane's
# ``spectrum_key``: singular values of keys and values as they are, the first of which is mostly the mean.

# Of ARRAYS, those a lane has only where its method gives them (Codec.usage).
OF_SOME_METHODS = ("code_counts", "symmetric_share", "outlier_share", "latent_bits")


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
    model_hash: str | None = None  # of weights, configuration, tokenizer and chat template; older runs: unknown
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
    attention_delta_reference_query: float | None = None  # at the steps capture.attention_steps
    key_rmse: float | None = None
    value_rmse: float | None = None
    in_subspace_error: float | None = None
    output_error: float | None = None  # ||d attention output||_2 at the reference's last query, mean over query heads
    output_bound: float | None = None  # what Theorem 1 of SQuat allows it to be; None for lanes that leave keys out
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


Tensors = tuple[Literal["keys", "values"], ...]


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

    @property
    def quantized(self) -> Tensors:
        """Of keys and values, those it holds quantized tokens of."""
        if self.memory is None:
            return ()
        bits = {"keys": self.memory.key_bits_quantized, "values": self.memory.value_bits_quantized}
        return tuple(tensor for tensor, width in bits.items() if width is not None)  # type: ignore[misc]


class StressRecord(_Part):
    """What function-preserving stress did to the reference itself: as good as nothing, or the run was refused."""

    settings: dict[str, Any]  # ComparisonSpec.stress
    layers: list[int]
    kv_heads: list[int]
    pairs: list[int]  # RoPE pairs (i, i + head_dim / 2) that were scaled, if the same in every head; else empty
    positions: int  # positions compared, prompt's last one included
    kld_max: float  # nats, KL(unstressed || stressed reference), largest over those positions
    logit_max: float  # largest change of a logit
    tolerance: float  # nats; a larger kld_max refuses the run
    same_tokens: bool  # the most probable token is the same at all positions
    sentence: str


class CaptureInfo(_Part):
    """Axes of the captured arrays. Lists are empty where the arrays that need them were not captured."""

    detail: str
    layers: list[int]  # layers of delta_map
    heads: list[int]  # query heads of delta_map
    step_edges: list[int]  # scored positions, length B + 1
    position_edges: list[int]  # key positions, length P + 1
    topk: int
    attention_steps: list[int] = []  # scored positions
    sink_tokens: int = 0  # first tokens whose attention mass is in sink_mass
    depth_edges: list[int] = []  # key positions, one more than there are buckets
    distribution_layers: list[int] = []
    quantiles: list[float] = []  # levels, 0 .. 1
    angle_ranks: list[int] = []
    subspace_texts: dict[str, str] = {}  # same_kind, other_kind: which text was read
    seconds: float = 0.0  # spent on captures, prefills of other texts included
    seconds_decoding: float = 0.0  # of these, during the decode


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
    stress: StressRecord | None = None
    # Text of every token id in the top-k arrays, and of the answers' ids that are no text by themselves; bytes that are
    # no whole character as <0xE4>, in older runs as U+FFFD.
    vocabulary: dict[int, str] = {}
    notes: list[str] = []
