"""What a run's captures keep, decided before it begins, so that all its arrays fit into what a stored run holds."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvq_core.capture.attention import DEPTHS, ROW_BYTES, STEPS
from kvq_core.capture.distribution import QUANTILES
from kvq_core.capture.scores import MAP_BYTES, POSITION_BINS, STEP_BINS, Extent
from kvq_core.capture.spectra import RANKS
from kvq_core.errors import SpecError
from kvq_core.models import LoadedModel
from kvq_core.spec import Capture, ComparisonSpec, layer_words

MOST_BYTES = 63 * 2**20  # of all arrays of a run; a stored run holds 64 MB
DISTRIBUTIONS = {"normal": 6, "deep": 64}  # layers whose key distributions are kept, at most
LOOKED = "captures are of layers that attend to all tokens, with heads of one size"
MANY_LANES = 8  # more than these are compared without captures where captures do not fit, rather than not at all
FEWEST_LAYERS = 4  # with score maps, before attention is looked at less often


@dataclass(frozen=True)
class CapturePlan:
    """``layers`` and query ``heads`` with score maps and attention rows; ``steps`` attention is looked at, at most;
    ``distributions``: layers with key distributions; ``bytes`` all arrays take at most; ``reduced``: what is kept less
    of than this level of detail keeps of a smaller run, in words."""

    layers: list[int]
    heads: list[int]
    steps: int
    distributions: list[int]
    bytes: int
    reduced: tuple[str, ...] = ()


def plan_of(model: LoadedModel, spec: ComparisonSpec, prompt: int) -> CapturePlan | None:
    """The plan of a run on ``prompt`` tokens; None with captures off, of MANY_LANES or more whose captures do not fit,
    and of a model none of whose layers captures look at. Raises SpecError as ``fit_plan`` does, and where layers are
    asked for that captures do not look at."""
    if spec.capture.detail == "off":
        return None
    asked = () if isinstance(spec.capture.layers, str) else spec.capture.layers
    if blank := sorted(set(asked) - set(model.shape.captured)):
        raise SpecError(f"capture.layers: {layer_words(blank)} of this model is not looked at: {LOOKED}.")
    if not model.shape.captured:
        return None
    new = len(model.encode(spec.continuation)) if spec.continuation is not None else spec.max_new_tokens
    extent = Extent.of(model.shape, len(spec.lanes) + 1, prompt, new)  # an fp16 cache runs along
    usage = sum(lane.usage_bytes(model.shape, extent.tokens) for lane in spec.lanes) + _of_prompt(spec, prompt)
    try:
        return fit_plan(extent, model.shape.kv_heads, spec.capture, usage)
    except SpecError:
        if len(spec.lanes) > MANY_LANES and spec.capture.layers == "auto":
            return None
        raise


def fit_plan(extent: Extent, kv_heads: int, capture: Capture, usage: int) -> CapturePlan:
    """The most that fits beside ``usage`` bytes of the methods' own: score maps of fewer layers first, then fewer looks
    at attention. Raises SpecError where not even the least fits, or the layers asked for do not.
    """
    e, detail = extent, capture.detail
    heads = list(range(e.query_heads)) if isinstance(capture.heads, str) else sorted(set(capture.heads))
    a_row = len(heads) * min(POSITION_BINS, max(1, e.tokens))
    a_layer = max(1, e.drawn) * max(1, min(STEP_BINS, e.steps)) * a_row
    every = list(e.looked or range(e.layers))
    asked = every if isinstance(capture.layers, str) else sorted(set(capture.layers))
    whole = min(STEPS[detail], e.steps), min(DISTRIBUTIONS[detail], len(every))
    steps, drawn = whole
    while True:
        rows = min(ROW_BYTES, e.lanes * steps * len(asked) * a_row)
        others = _others(e, kv_heads, steps, drawn) + usage + rows
        room = (min(MAP_BYTES, MOST_BYTES - others) if capture.layers == "auto" else MOST_BYTES - others) // a_layer
        needed = min(FEWEST_LAYERS if steps > 1 else 1, len(every)) if capture.layers == "auto" else len(asked)
        if room >= needed:
            break
        if max(steps, drawn) <= 1:
            raise SpecError(_too_much(others + needed * a_layer, capture, needed))
        steps, drawn = max(min(1, steps), steps // 2), max(1, drawn // 2)
    layers = asked if room >= len(asked) else _spread(every, room)
    found = (
        ("score maps and attention rows", "layers", len(layers), len(asked)),
        ("attention", "steps", steps, whole[0]),
        ("key distributions", "layers", drawn, whole[1]),
    )
    reduced = tuple(f"{what} of {kept} of {all} {unit}" for what, unit, kept, all in found if kept < all)
    return CapturePlan(layers, heads, steps, _spread(every, drawn), others + len(layers) * a_layer, reduced)


def _of_prompt(spec: ComparisonSpec, prompt: int) -> int:
    """Bytes of what is scored of the prompt and of given answers, at most: prompt_* and turns_* of every row."""
    if spec.messages is None and all(lane.chunks is None for lane in spec.lanes):
        return 0
    return 2 * prompt * (8 + 9 * spec.forced_rows)


def _too_much(bytes: int, capture: Capture, layers: int) -> str:
    most = f"at most {MOST_BYTES >> 20} MB are kept"
    if capture.layers == "auto":
        return (
            f"The captures of this run would take {bytes >> 20} MB; {most}. Take fewer new tokens or fewer lanes, or "
            'set capture.detail to "off".'
        )
    return (
        f"Captures with the score maps of {layers} layers would take {bytes >> 20} MB; {most}. Give fewer layers or "
        'heads in capture, or set capture.layers to "auto".'
    )


def _others(e: Extent, kv_heads: int, steps: int, drawn: int) -> int:
    """Bytes of all arrays but score maps, attention rows and Method.usage_bytes, at most; the arrays are those of
    record.ARRAYS."""
    heads, queries = e.layers * kv_heads, e.layers * e.query_heads
    channels, angles = heads * max(e.head_dim, e.value_dim), 2 * heads * len(RANKS) * max(RANKS)
    quantiles = 2 * 2 * drawn * kv_heads * e.head_dim * len(QUANTILES)
    scored = e.steps * 4 * (3 + 1 + 2 * 5)
    shared = 14 * channels + 2 * e.layers * e.head_dim + 3 * heads + 4 * (channels + heads)
    prompt = 4 * shared + angles + quantiles + 4 * steps * queries + (1 << 16)
    lane = 4 * (4 * channels + 2 * heads + DEPTHS * (2 * heads + queries) + 4 * steps * queries + 5 * queries)
    statistics = 3 * 2 * queries * e.steps
    shown = 4 * channels + 2 * angles + quantiles
    return prompt + (e.lanes + 1) * scored + e.lanes * (lane + statistics) + e.drawn * shown


def _spread(layers: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of the layers, evenly spaced, ends included."""
    count = len(layers)
    return sorted({layers[i * (count - 1) // max(1, min(most, count) - 1)] for i in range(min(most, count))})
