"""What a run will take, before it is started: tokens, seconds and bytes."""

from dataclasses import dataclass

from kvq_core.capture.attention import STEPS
from kvq_core.capture.plan import LOOKED, MOST_BYTES, plan_of
from kvq_core.engine.script import Script
from kvq_core.machine.memory import room_for, shortage
from kvq_core.models import LoadedModel, conversion_progress, load, with_model
from kvq_core.pipeline.answer import check_reference
from kvq_core.pipeline.footprint import batch_size, batches, run_bytes
from kvq_core.pipeline.prompt import script
from kvq_core.pipeline.timings import Cost, TimedWork, methods_of, predict, read_timings
from kvq_core.record.events import Loading
from kvq_core.spec import TENSORS, Assignment, ComparisonSpec, Lane, Tensor
from kvq_core.spec.chats import passed_line


@dataclass(frozen=True)
class LaneEstimate:
    """How much of the prompt a lane would quantize, in tokens, and what to do if that is nothing."""

    label: str
    key_tokens: int
    value_tokens: int
    total_tokens: int
    warning: str | None
    starts_at: int | None = None  # tokens from which it would quantize something, of a lane that would not


@dataclass(frozen=True)
class Estimate:
    """``cost``: what the run takes on top of the model's weights, its seconds fitted on this machine's last runs of the
    model at this level of capture; ``bytes`` the peak with the weights; ``tokens`` those of prompt and answer;
    ``notes`` what makes this run cost more than others like it; ``batches``: in how many the lanes go."""

    prompt_tokens: int
    context: int
    cost: Cost
    bytes: int
    lanes: list[LaneEstimate]
    notes: tuple[str, ...] = ()
    tokens: int = 0
    device: str = "cpu"
    batches: int = 1


def estimate(spec: ComparisonSpec) -> Estimate:
    """Estimate a run. Loads the model, whose tokenizer counts the prompt.

    Raises KvqError where the spec cannot be run.
    """
    spec = with_model(spec)
    return estimate_on(load(spec.model, spec.revision), spec)


def estimate_on(model: LoadedModel, spec: ComparisonSpec) -> Estimate:
    """``estimate`` on a model that is at hand, be it without its weights."""
    read, new = _sized(model, spec)
    prompt = len(read.ids)
    passed = read.through(spec.lanes)
    through = passed + (prompt if spec.floors == "both" else 0)
    lanes = [_lane(lane, model, prompt, prompt + new - 1) for lane in spec.lanes]
    size = batch_size(model, spec, read, new)
    count = len(batches(spec.lanes, size))
    work = TimedWork(prompt, new, spec.forced_rows, methods_of(spec.lanes), through, count)
    stages = predict(model.id, spec.capture.detail, work)
    weights = sum(p.numel() * p.element_size() for p in model.model.parameters())
    extra = run_bytes(model, spec, read, new, size)
    return Estimate(
        prompt,
        model.shape.context,
        Cost(None if stages is None else stages.total or None, extra, stages),
        weights + extra,
        lanes,
        tuple(_notes(model, spec, prompt, passed)),
        prompt + new,
        str(model.device),
        count,
    )


def _notes(model: LoadedModel, spec: ComparisonSpec, prompt: int, passed: int) -> list[str]:
    """What makes the run cost more than others like it: ``passed`` tokens computed again by lanes, and captures."""
    notes, detail = [said for said in (passed_line(spec.passed),) if said], spec.capture.detail
    if passed:
        notes.append(
            f"Reading the prompt through the lanes' own caches computes {passed:,} tokens more, "
            f"{passed / prompt:.1f} times the prompt."
        )
    if detail == "deep":
        fitted = "" if read_timings(model.id, detail) else "; the time told is that of normal captures"
        notes.append(
            f"Deep captures look at attention at up to {STEPS['deep']} steps instead of {STEPS['normal']} and at key "
            f"distributions in all layers: the run takes longer{fitted}."
        )
    plan = plan_of(model, spec, prompt)
    if plan is None and detail != "off":
        fit = f"Captures of {len(spec.lanes)} lanes do not fit into {MOST_BYTES >> 20} MB: none are kept."
        notes.append(fit if model.shape.captured else f"No captures are kept: {LOOKED}, and this model has none.")
    if plan is not None and plan.reduced:
        notes.append(f"So that captures fit into {MOST_BYTES >> 20} MB, they keep {'; '.join(plan.reduced)}.")
    return notes


def loading_progress(model: str) -> Loading:
    """How far a model is that an estimate loads meanwhile, in another thread."""
    step = conversion_progress()
    return Loading(model) if step is None else Loading.of(model, step)


def memory_warning(spec: ComparisonSpec) -> str | None:
    """Why a run may not fit in the memory that is free now; None where it does. Loads the model.

    Raises KvqError where the spec cannot be run.
    """
    spec = with_model(spec)
    model = load(spec.model, spec.revision)
    read, new = _sized(model, spec)
    needed = run_bytes(model, spec, read, new, batch_size(model, spec, read, new))
    return shortage(needed, room_for(needed, model.device), len(read.ids) + new, len(spec.lanes))


def _sized(model: LoadedModel, spec: ComparisonSpec) -> tuple[Script, int]:
    """The prompt as the model reads it, and how many tokens the answer has."""
    check_reference(model, spec)
    new = len(model.encode(spec.continuation)) if spec.continuation is not None else spec.max_new_tokens
    return script(model, spec), new


def _lane(lane: Lane, model: LoadedModel, prompt: int, end: int) -> LaneEstimate:
    plan = lane.plan(model.shape)
    key, value = (
        # generated tokens of a prompt-only lane stay in its window
        _quantized(plan, tensor, prompt, end)
        for tensor in TENSORS
    )
    warning = needed = None
    if reason := lane.why_not(model.shape):
        warning = f"{lane.label} cannot run: {reason}."
    elif plan and not key and not value:
        needed = min(w.sink + w.recent + (w.step or 0) for w in (a.window for a in plan))
        warning = (
            f"{lane.label} would quantize nothing: all {end} tokens fit in its full-precision windows; "
            f"it starts at {needed} tokens."
        )
    return LaneEstimate(lane.label, key, value, end, warning, needed)


def _quantized(plan: tuple[Assignment, ...], tensor: Tensor, prompt: int, end: int) -> int:
    """The most tokens that a layer holds encoded, of all rules that share it."""
    found: dict[tuple[int, ...], int] = {}
    for a in plan:
        if a.tensor == tensor and not a.beside:
            found[a.layers] = found.get(a.layers, 0) + a.packed_later(prompt, end)
    return max(found.values(), default=0)
