"""What a run will take, before it is started: tokens, seconds and bytes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvq_core.capture.attention import STEPS
from kvq_core.capture.plan import MOST_BYTES, plan_of
from kvq_core.capture.scores import MAP_BYTES, POSITION_BINS, SCORE_BYTES, STEP_BINS
from kvq_core.engine.prefill import CHUNK
from kvq_core.engine.script import Script
from kvq_core.events import Loading
from kvq_core.machine import files
from kvq_core.machine.memory import free_bytes, shortage
from kvq_core.models import LoadedModel, converting, load, with_model
from kvq_core.models.head import POSITIONS
from kvq_core.pipeline.prompt import script
from kvq_core.record.fields import Record
from kvq_core.settings import settings
from kvq_core.spec import MAX_LANES, TENSORS, ComparisonSpec, Lane

REMEMBERED = 40  # runs a machine's timing is fitted on
LOGIT_COPIES = (
    6  # of the logits scored at once: as computed, in float32, as log-probabilities of both sides and between
)
ALLOCATORS = 1.1  # measured peaks are up to 4 % above the sum of what is held: blocks are rounded up and kept
BASE_BYTES = 60_000_000  # what even the shortest run takes: libraries' buffers, threads' stacks, the tokens' texts


@dataclass(frozen=True)
class LaneEstimate:
    """How much of the prompt a lane would quantize, in tokens, and what to do if that is nothing."""

    label: str
    key_tokens: int
    value_tokens: int
    total_tokens: int
    warning: str | None


@dataclass(frozen=True)
class Estimate:
    """``seconds`` are fitted on this machine's last runs of the model at this level of capture, None before the first
    of any; ``bytes`` the peak, of which ``run_bytes`` come on top of the model's weights; ``tokens`` those of prompt
    and answer; ``notes`` what makes this run cost more than others like it."""

    prompt_tokens: int
    context: int
    seconds: float | None
    bytes: int
    lanes: list[LaneEstimate]
    notes: tuple[str, ...] = ()
    tokens: int = 0
    run_bytes: int = 0
    device: str = "cpu"


def estimate(spec: ComparisonSpec) -> Estimate:
    """Estimate a run. Loads the model, whose tokenizer counts the prompt.

    Raises KvqError where the spec cannot be run.
    """
    spec, model, read, new = _sized(spec)
    prompt = len(read.ids)
    passed = read.through(spec.lanes)
    through = passed + (prompt if spec.floors == "both" else 0)
    lanes = [_lane(lane, model, prompt, prompt + new - 1) for lane in spec.lanes]
    detail = spec.capture.detail
    seconds = _seconds(model.id, detail, prompt, new, spec.forced_rows, through)
    notes = []
    if passed:
        notes.append(
            f"Reading the prompt through the lanes' own caches computes {passed:,} tokens more, "
            f"{passed / prompt:.1f} times the prompt."
        )
    if detail == "deep":
        fitted = "" if _known(_memory_file(model.id, detail)) else "; the time told is that of normal captures"
        notes.append(
            f"Deep captures look at attention at up to {STEPS['deep']} steps instead of {STEPS['normal']} and at key "
            f"distributions in all layers: the run takes longer{fitted}."
        )
    plan = plan_of(model, spec, prompt)
    if plan is not None and plan.reduced:
        notes.append(f"So that captures fit into {MOST_BYTES >> 20} MB, they keep {'; '.join(plan.reduced)}.")
    weights = sum(p.numel() * p.element_size() for p in model.model.parameters())
    extra = _run_bytes(model, spec, read, new)
    return Estimate(
        prompt,
        model.shape.context,
        seconds,
        weights + extra,
        lanes,
        tuple(notes),
        prompt + new,
        extra,
        str(model.device),
    )


def loading(model: str) -> Loading:
    """How far a model is that an estimate loads meanwhile, in another thread."""
    return Loading(model, *(converting() or ()))


def memory_warning(spec: ComparisonSpec) -> str | None:
    """Why a run may not fit in the memory that is free now; None where it does. Loads the model.

    Raises KvqError where the spec cannot be run.
    """
    spec, model, read, new = _sized(spec)
    needed = _run_bytes(model, spec, read, new)
    return shortage(needed, free_bytes(model.device), len(read.ids) + new, len(spec.lanes))


def _sized(spec: ComparisonSpec) -> tuple[ComparisonSpec, LoadedModel, Script, int]:
    """The spec with its model's name, the model, the prompt as it reads it, and how many tokens the answer has."""
    spec = with_model(spec)
    model = load(spec.model, spec.revision)
    read = script(model, spec)
    new = len(model.encode(spec.continuation)) if spec.continuation is not None else spec.max_new_tokens
    return spec, model, read, new


def _lane(lane: Lane, model: LoadedModel, prompt: int, end: int) -> LaneEstimate:
    plan = lane.plan(model.shape)
    key, value = (
        # generated tokens of a prompt-only lane stay in its window
        max(
            (w.packed(prompt if w.prompt_only else end) for w in (a.window for a in plan if a.tensor == tensor)),
            default=0,
        )
        for tensor in TENSORS
    )
    warning = None
    if reason := lane.why_not(model.shape):
        warning = f"{lane.label} cannot run: {reason}."
    elif plan and not key and not value:
        needed = min(w.sink + w.recent + (w.step or 0) for w in (a.window for a in plan))
        warning = (
            f"{lane.label} would quantize nothing: all {end} tokens fit in its full-precision windows; "
            f"it starts at {needed} tokens."
        )
    return LaneEstimate(lane.label, key, value, end, warning)


def _run_bytes(model: LoadedModel, spec: ComparisonSpec, read: Script, new: int) -> int:
    """The peak of what a run holds beside the weights: the prompt's tensors, the float32 working copies of all rows,
    and what one stage holds for a moment, see ``_passing``; benchmarks/load.py compares it with measured peaks."""
    shape, prompt = model.shape, len(read.ids)
    token = shape.layers * shape.kv_heads * shape.head_dim * 4 * 2  # keys and values of one row
    lanes = spec.forced_rows
    windows = [assigned.window for lane in spec.lanes for assigned in lane.plan(shape)]
    prefix = min([w.frozen(prompt) for w in windows], default=prompt)
    copies = (lanes + 1) * prefix * token + (2 * lanes + 1) * (prompt + new - prefix) * token
    queries = shape.layers * shape.query_heads * shape.head_dim * 4 * prompt
    stored = lanes * prompt * token // 4  # at most 8 bits an element for nearly all methods, and their metadata
    read_twice = (prompt * token + queries) * (spec.floors == "both")
    held = copies + prompt * token + queries + stored + read_twice
    if read.through(spec.lanes):  # before there are rows: own and read keys and values of the lanes of a pass
        held = max(held, held - copies + 2 * prompt * token * max(map(_together, spec.lanes)))
    return round(ALLOCATORS * (held + _captured(model, spec, prompt, new) + _passing(model, spec, prompt, new)))


def _together(lane: Lane) -> int:
    """At most, how many lanes read a prompt through their caches at once, where all are like this one."""
    return 1 if lane.chunks is None else max(1, min(MAX_LANES, CHUNK // lane.chunks.chunk))


def _captured(model: LoadedModel, spec: ComparisonSpec, prompt: int, new: int) -> int:
    """Score maps in float32 while they are made, and the record's arrays three times while they are written."""
    if spec.capture.detail == "off":
        return 0
    shape, lanes, steps = model.shape, len(spec.lanes), max(1, new - 1)
    cells = lanes * shape.layers * shape.query_heads * min(STEP_BINS, steps) * min(POSITION_BINS, prompt + new)
    statistics = 4 * (lanes + 1) * shape.layers * shape.query_heads * steps * 4
    tap_queries = shape.layers * shape.query_heads * steps * shape.head_dim * 4
    return 4 * min(MAP_BYTES, cells) + statistics + tap_queries + 3 * min(SCORE_BYTES, cells + statistics // 2)


def _passing(model: LoadedModel, spec: ComparisonSpec, prompt: int, new: int) -> int:
    """What a prefill chunk or a decode step computes with, the larger of the two, and the measuring at the end."""
    shape, config = model.shape, model.model.config
    chunk = min(CHUNK, prompt)
    width = 4 * config.hidden_size + 3 * getattr(config, "intermediate_size", 4 * config.hidden_size)
    prefill = 4 * chunk * (width + shape.query_heads * prompt)
    given = spec.continuation is not None  # where it is, no row is free
    rows, fed = (spec.forced_rows + 1, min(spec.score_chunk, new)) if given else (2 * spec.forced_rows + 1, 1)
    layer = 4 * rows * fed * (width + shape.query_heads * (prompt + new))
    step = layer + LOGIT_COPIES * 4 * rows * min(POSITIONS, fed) * config.vocab_size
    measuring = 2 * prompt * shape.layers * shape.kv_heads * shape.head_dim * 4 * 2  # a lane's decoded prompt, twice
    return BASE_BYTES + measuring + max(prefill, step)


def _features(prompt: int, new: int, lanes: int, through: int) -> list[float]:
    """What time grows with: tokens of the prompt read, by the reference and ``through`` the lanes' caches, encoding,
    steps, rows, and the reading of every row's cache."""
    rows = [new, new * lanes, new * lanes * prompt / 1e3]
    return [1.0, (prompt + through) / 1e3, prompt * lanes / 1e3, *rows]


def _memory_file(model: str, detail: str) -> Path:
    name = "".join(c if c.isalnum() else "-" for c in model) + ("" if detail == "normal" else f".{detail}")
    return settings().home / "timings" / f"{name}.json"


def remember(record: Record) -> None:
    """Keep a finished run's timing for later estimates on this machine, if it can be kept."""
    steps = record.timing.steps
    if not steps:
        return
    file = _memory_file(record.environment.model, record.capture.detail)
    known = _known(file)
    prompt = len(record.reference.prompt_token_ids)
    floors = 1 if record.kernel_floor is None else 2
    through = record.timing.through_caches + (prompt if floors > 1 else 0)
    known.append([prompt, steps + 1, len(record.lanes) + floors, record.timing.total_s, through])
    files.keep_memo(file, known[-REMEMBERED:])


def _known(file: Path) -> list[list[float]]:
    return files.read_memo(file) or []


def _seconds(model: str, detail: str, prompt: int, new: int, lanes: int, through: int) -> float | None:
    known = _known(_memory_file(model, detail)) or _known(_memory_file(model, "normal"))
    if not known:
        return None
    from scipy.optimize import nnls  # a second's import that most commands never need

    # memos of older versions end with the seconds
    rows = np.array([_features(int(p), int(n), int(k), int(sum(more))) for p, n, k, _, *more in known])
    times = np.array([t for _, _, _, t, *_ in known])
    # relative errors: a long run's second is worth less than a short one's
    weights, _ = nnls(rows / times[:, None], np.ones(len(times)))
    return float(np.dot(_features(prompt, new, lanes, through), weights)) or None
