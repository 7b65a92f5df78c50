"""The record of a finished run: what is stored, linked, drawn and exported.

Arrays too large for JSON lie beside it, see ``arrays``.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import PrivateAttr

from kvq_core.record.environment import Environment
from kvq_core.record.memory import Memory
from kvq_core.record.options import RecordedLaneOptions, RecordedRuleOptions
from kvq_core.record.prompt_fields import PromptMetrics, RecordPart, TurnMetrics

SCHEMA_VERSION = 8  # of record and manifest; raised when a field changes, see migrate.py
RESULTS_VERSION = 8  # raised whenever a change alters results, so that stored runs are not taken for new ones
DRAFT_TOKENS = 4  # of Metrics.tokens_a_step


# Runs of results version 5 and older have ``spectra/key_pre`` and so on in place of ``centred/key_pre``, and a lane's
# ``spectrum_key``: singular values of keys and values as they are, the first of which is mostly the mean.


class Reference(RecordPart):
    """The full-precision row and the prompt all rows share."""

    text: str
    token_ids: list[int]
    tokens: list[str]  # text pieces; concatenated they are `text`
    prompt_token_ids: list[int]
    prompt_tokens: list[str]
    finish: Literal["eos", "length", "continuation"]
    ppl: float | None


class Interval(RecordPart):
    """A mean with its standard error (sigma / sqrt(n), as llama-perplexity prints it)."""

    value: float | None  # None: not finite
    se: float | None


class Metrics(RecordPart):
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
    acceptance: float | None = None  # sum over the vocabulary of min(p, q), mean over positions; older runs: unknown
    tokens_a_step: float | None = None  # that a pass of the verifier yields, DRAFT_TOKENS drafted before it
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
    prompt: PromptMetrics | None = None  # None: the prompt was read in full precision
    turns: list[TurnMetrics] = []  # of a conversation all of whose answers are scored, the generated one last


class Timing(RecordPart):
    """Seconds on this machine. The engine simulates the cache's arithmetic on a working copy: not a kernel's speed."""

    encode_prompt_s: float
    encode_decode_s: float
    simulated: bool = True


Tensors = tuple[Literal["keys", "values"], ...]


class _OfRule(RecordPart):
    method: str
    title: str
    summary: str
    knobs: dict[str, Any]


class RuleRecord(RecordedRuleOptions, _OfRule):
    """One rule of a lane, as it was applied: a method with all its knobs, and what of the cache it was for."""

    tokens: Any = "all"


class _OfLane(RecordPart):
    label: str
    method: str | None
    title: str
    summary: str
    knobs: dict[str, Any] | None


class LaneRecord(RecordedLaneOptions, RecordedRuleOptions, _OfLane):
    """A lane. Where it has one rule, the fields of that rule stand here too; where several, ``method`` and ``knobs``
    are null, ``tensors`` and ``layers`` what the rules quantize together."""

    rules: list[RuleRecord]
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
    def every_rule(self) -> list[RuleRecord]:
        """Its rules; where there is one, what the lane's own fields say."""
        if self.method is None:
            return self.rules
        return [RuleRecord(**{name: getattr(self, name) for name in RuleRecord.model_fields if name != "tokens"})]

    def rules_for(self, tensor: Literal["keys", "values"]) -> list[RuleRecord]:
        """Its rules for keys, or for values; of a layer the first that is for it counts."""
        return [rule for rule in self.every_rule if rule.tensors in ("both", tensor)]

    @property
    def quantized(self) -> Tensors:
        """Of keys and values, those it holds quantized tokens of."""
        if self.memory is None:
            return ()
        bits = {"keys": self.memory.key_bits_quantized, "values": self.memory.value_bits_quantized}
        return tuple(tensor for tensor, width in bits.items() if width is not None)  # type: ignore[misc]


class StressRecord(RecordPart):
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


class CaptureInfo(RecordPart):
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


class RunTiming(RecordPart):
    """Seconds of the stages of the whole run."""

    prefill_s: float
    encode_s: float
    decode_s: float
    steps: int
    ms_per_step: float | None
    rows_mean: float  # rows in the batch, averaged over steps
    total_s: float


class Record(RecordPart):
    schema_version: int = SCHEMA_VERSION
    id: str
    results_version: int
    created: str  # ISO 8601, UTC
    spec: dict[str, Any]
    environment: Environment
    reference: Reference
    noise_floor: LaneRecord  # storage: an fp16 cache
    kernel_floor: LaneRecord | None = None  # another kernel, of spec.floors = "both"
    lanes: list[LaneRecord]
    capture: CaptureInfo
    timing: RunTiming
    stress: StressRecord | None = None
    # Text of every token id in the top-k arrays, and of the answers' ids that are no text by themselves; bytes that are
    # no whole character as <0xE4>, in older runs as U+FFFD.
    vocabulary: dict[int, str] = {}
    notes: list[str] = []
    parent: str | None = None  # id of the run whose reference's answer the lanes follow, and whose noise floor it tells
    _whole: "Record | None" = PrivateAttr(None)
    _numbers: tuple[int, ...] = PrivateAttr(())
    _added: tuple[tuple[str, int], ...] = PrivateAttr(())
    _beside: tuple[str, ...] = PrivateAttr(())
    _causes: Mapping[int, Any] = PrivateAttr(default_factory=dict)
    _looks: "tuple[tuple[Record, Mapping[str, Any]], ...]" = PrivateAttr(())
    _replayed: "tuple[tuple[Record, Mapping[str, Any]], ...]" = PrivateAttr(())

    @property
    def whole(self) -> "Record":
        """The run with all its lanes, where this is it with some: see record.subset."""
        return self._whole or self

    def number(self, index: int) -> int:
        """The place in the whole run of one of these lanes: its colour and its mark go by that."""
        return self._numbers[index] if self._numbers else index

    def added(self, index: int) -> tuple[str, int] | None:
        """Of a lane that was added to a run: the run of its own, and which of that one's lanes it is."""
        own, at = len(self.whole.lanes) - len(self.whole._added), self.number(index)
        return self.whole._added[at - own] if at >= own else None

    def causes(self, index: int) -> Any:
        """What a lane's damage comes from, an analysis.why.Why; None where that was not measured."""
        return self.whole._causes.get(self.number(index))

    @property
    def looks(self) -> "tuple[tuple[Record, Mapping[str, Any]], ...]":
        """Runs that looked at this one's lanes in one layer, with their arrays, see analysis.looks; first those drawn
        from memory and kept nowhere, which have no id."""
        return (*self._replayed, *self.whole._looks)

    @property
    def beside(self) -> tuple[str, ...]:
        """Ids of the runs beside this one that are drawn with it: see record.subset.with_added."""
        return self.whole._beside

    @property
    def question(self) -> str:
        """What was asked, for people to recognize a run by: the prompt, or the user's last message."""
        asked = [told["content"] for told in self.spec.get("messages") or () if told["role"] == "user"]
        return str(asked[-1] if asked else self.spec.get("prompt", ""))
