"""The prompt as the model sees it, and the last checks before anything is computed."""

from kvq_core.engine.script import Script
from kvq_core.errors import SpecError, excerpt
from kvq_core.models import LoadedModel
from kvq_core.spec import ComparisonSpec


def render(model: LoadedModel, spec: ComparisonSpec) -> list[int]:
    """``script``'s token ids."""
    return script(model, spec).ids


def script(model: LoadedModel, spec: ComparisonSpec, rendered: list[int] | None = None) -> Script:
    """The prompt, or the conversation, as the model reads it, checked against the model.

    Raises SpecError: longer than the context, or a lane that cannot run on the model; nothing is left to fail later
    that can be known now.
    """
    read = read_prompt(model, spec, rendered)
    check_places(model, spec)
    for lane in spec.lanes:
        for rule in lane.every_rule:
            if rule.spans and rule.spans[-1][1] > read.segments[0].end:
                raise SpecError(
                    f"Lane {lane.label!r}: the span {excerpt(list(rule.spans[-1]))} ends behind the prompt, or its "
                    f"first turn, which has {read.segments[0].end} tokens; give spans of it."
                )
    return read


def read_prompt(model: LoadedModel, spec: ComparisonSpec, rendered: list[int] | None = None) -> Script:
    """``script`` without a look at lanes; ``rendered``: the ids of a prompt that has been rendered already.

    Raises SpecError where it has no tokens, or more than the context.
    """
    if spec.messages is None:
        turns = [(model.render(spec.prompt, spec.system, spec.chat) if rendered is None else rendered, False)]
    else:
        turns = model.render_turns(spec.messages, spec.tools)
    read = Script.of_turns(turns)
    ids = read.ids
    new = len(model.encode(spec.continuation)) if spec.continuation is not None else spec.max_new_tokens
    if not ids:
        raise SpecError("The prompt has no tokens; type some text.")
    if len(ids) + new > model.shape.context:
        kind = "to score" if spec.continuation is not None else "to generate"
        raise SpecError(
            f"{len(ids)} prompt tokens and {new} {kind} are more than the {model.shape.context} tokens of context of "
            f"{model.title}; shorten the prompt by {len(ids) + new - model.shape.context} tokens."
        )
    return read


def check_places(model: LoadedModel, spec: ComparisonSpec) -> None:
    """Whether the model has what the spec names of it, whatever the prompt is. Raises SpecError where it has not."""
    shape, stress = model.shape, spec.stress
    pairs = stress.key_outlier_pairs
    for name, asked, there in (
        ("capture.layers", spec.capture.layers, shape.layers),
        ("capture.heads", spec.capture.heads, shape.query_heads),
        ("stress.layers", stress.layers, shape.layers),
        ("stress.kv_heads", stress.kv_heads, shape.kv_heads),
        ("stress.key_outlier_pairs", "any" if isinstance(pairs, int) else pairs, shape.head_dim // 2),
    ):
        if not isinstance(asked, str) and (not asked or max(asked) >= there):
            what = name.split(".")[1].removeprefix("key_outlier_").replace("_", " ")
            raise SpecError(f"{name} = {excerpt(list(asked))} is not allowed; the model has {what} 0 to {there - 1}.")
    for lane in spec.lanes:
        if reason := lane.out_of_place(model.shape):
            raise SpecError(f"Lane {lane.label!r}: {reason}.")
