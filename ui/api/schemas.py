"""What the named endpoints take and give: every type here is a schema that clients are shown.

Units are those of kvq_core/record/fields.py: distributions in nats, errors relative, bits an element with metadata.
"""

import builtins
import types
import typing
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from kvq_core.methods import Knob
from kvq_core.pipeline.estimate import LaneEstimate
from kvq_core.recommend.constraints import Advice
from kvq_core.record.fields import Record
from kvq_core.spec import ComparisonSpec, Lane


def _typed(cls: Any, **known: Any) -> Any:
    """A model or dataclass as a TypedDict, which Gradio can turn into a schema; ``known``: types of some fields.

    None is required: a comparison may leave out what has a default.
    """
    hints = get_type_hints(cls)
    names = cls.model_fields if issubclass(cls, BaseModel) else cls.__dataclass_fields__
    made: Any = TypedDict  # its fields are known at run time only
    return made(cls.__name__, {name: known.get(name) or _plain(hints[name]) for name in names}, total=False)


def typed_dict(name: str, cls: Any, without: tuple[str, ...], own: dict[str, Any]) -> Any:
    """A model as a TypedDict without some of its fields and with others."""
    fields = {field: hint for field, hint in get_type_hints(_typed(cls)).items() if field not in without}
    made: Any = TypedDict
    return made(name, {**own, **fields}, total=False)


def _plain(hint: Any) -> Any:
    """A field's type as JSON knows it: models spelled out, tuples as lists, text as keys."""
    inner = tuple(_plain(part) for part in get_args(hint) if part is not ...)
    match get_origin(hint):
        case None:
            return _typed(hint) if isinstance(hint, type) and issubclass(hint, BaseModel) else hint
        case builtins.tuple | builtins.list:
            return types.GenericAlias(list, inner[:1])
        case builtins.dict:
            return types.GenericAlias(dict, (str, inner[1]))
        case types.UnionType | typing.Union:
            return Union[inner]  # noqa: UP007
    return hint


if TYPE_CHECKING:
    Spec: TypeAlias = dict[str, Any]
    LaneSpec: TypeAlias = dict[str, Any]
    RunRecord: TypeAlias = dict[str, Any]
    LaneForecast: TypeAlias = dict[str, Any]
    KnobInfo: TypeAlias = dict[str, Any]
    AdviceInfo: TypeAlias = dict[str, Any]
else:
    Spec, RunRecord, LaneForecast = _typed(ComparisonSpec), _typed(Record), _typed(LaneEstimate)
    LaneSpec = _typed(Lane)
    KnobInfo = _typed(Knob, fields=list[dict[str, Any]])  # the knobs of an object, as these
    AdviceInfo = _typed(Advice)


class LaneText(TypedDict):
    """A lane in mid-run: its own text, and how far its next-token distributions are from the reference's."""

    label: str
    text: str
    scored: int  # positions
    kld_mean: float | None  # nats, over the scored positions
    first_divergence: int | None  # token of the first difference
    error: str | None


class LaneResult(TypedDict):
    """The main figures of a lane; record.json says more, and what each is."""

    label: str
    method: str | None  # None: several rules, which record.json tells
    status: Literal["done", "failed"]
    error: str | None
    verdict: str
    tier_reason: str | None  # the figure that decides its tier: KLD, flips, tail or own text; null of no tier
    text: str
    key_bits: float | None
    value_bits: float | None
    kv_ratio: float | None
    n_scored: int
    kld_mean: float | None
    kld_p99: float | None
    flip_rate: float | None
    above_floor: float | None  # share of positions with a KLD above the larger floor's; null of floors
    acceptance: float | None  # share of its drafts that a drafter on this cache would keep; null in older runs
    tokens_a_step: float | None  # that a pass of the verifier yields, 4 drafted
    ppl_ratio: float | None
    first_divergence: int | None
    attention_delta_mean: float | None
    key_rmse: float | None
    value_rmse: float | None


class Result(TypedDict):
    """A finished comparison. ``run`` names it for good; ``unkept`` says why the store could not keep it. On a public
    instance only ``key`` opens the run until it is shared; on a private one it is empty."""

    run: str
    key: str
    link: str
    answer: str  # of all lanes in one sentence; of one prompt, so it recommends nothing
    model: str
    prompt_tokens: int
    reference: str
    lanes: list[LaneResult]
    noise_floor: LaneResult
    kernel_floor: LaneResult | None  # of floors = "both": the reference as another kernel computes it
    seconds: float
    reused: bool
    unkept: str


class RunProgress(TypedDict):
    """How far a comparison is. ``done`` of ``total`` counts runs ahead, prompt tokens, lanes or new tokens; the last
    update has the stage "finished" and the result."""

    stage: Literal["waiting", "loading", "prefill", "encoding", "filling", "decoding", "measuring", "finished"]
    done: int
    total: int
    reference: str
    lanes: list[LaneText]
    result: Result | None


class Forecast(TypedDict):
    """What a run would take. ``refusal`` says why this instance would not start it; ``seconds`` is null until a run of
    the model was timed here."""

    model: str
    prompt_tokens: int
    context: int
    seconds: float | None
    bytes: int
    refusal: str | None
    notes: list[str]
    lanes: list[LaneForecast]


class MethodInfo(TypedDict):
    """A quantization method, the paper it comes from and where this implementation departs from it."""

    name: str
    title: str
    paper: str | None
    doc: str
    deviations: list[str]
    knobs: list[KnobInfo]


class PresetInfo(TypedDict):
    """A ready experiment: the question it asks and the labels of its lanes."""

    name: str
    title: str
    question: str
    lanes: list[str]


class Experiment(TypedDict):
    """A ready experiment in full; ``spec`` can be given to compare as it is."""

    name: str
    title: str
    question: str
    look_at: list[str]
    claim: str | None
    spec: Spec


class ClaimInfo(TypedDict):
    """A paper's claim: its criterion, the verdict on the model asked for, in how many texts it holds, the numbers
    compared, and the verdicts on all models."""

    paper: str
    arxiv: str
    claim: str
    where: str
    quote: str  # the paper's own words; ``claim`` is what the criterion tests
    quoted_from: str
    less: str  # where the criterion tests less than the quote says
    setting: str
    criterion: list[str]
    verdict: str
    within_noise: bool  # other texts may well turn it
    held: str
    measured: list[str]
    reason: str
    verdicts: dict[str, str]  # by id of the model
    flips_with_the_model: bool  # holds on one of them, does not hold on another


class RunInfo(TypedDict):
    """A stored run in one line."""

    run: str
    created: str
    model: str
    prompt: str
    lanes: list[str]
    link: str
