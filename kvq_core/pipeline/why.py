"""The run that tells what a lane's damage comes from: the lane as it is, and once for each part kept in fp16."""

from collections.abc import Generator, Iterator
from contextlib import suppress

from kvq_core.analysis.why import Kind, Why, why
from kvq_core.errors import SpecError
from kvq_core.events import Event, Finished
from kvq_core.pipeline.added import adding, index_of
from kvq_core.record.fields import Record
from kvq_core.spec import Lane, Rule, parse_spec
from kvq_core.store.store import Store, open_store

THIRDS = ("first", "middle", "last")


def measure_why(run: Record | str, lane: str, store: Store | None = None) -> Why:
    """What the damage of a finished run's lane, by its label, comes from: a batch of up to seven lanes, on the run's
    prompt and answer and with no text of their own. Raises SpecError as ``add_lane`` does, and for a lane that is not
    there."""
    parent = run if isinstance(run, Record) else (store or open_store()).load(run)[0]
    at = index_of(parent, lane)
    for event in asking_why(parent, at, store):
        if isinstance(event, Finished):
            return why_of(parent, at, event)
    raise AssertionError("what is added ends with Finished")


def asking_why(parent: Record, at: int, store: Store | None = None, owner: str = "") -> Generator[Event]:
    """The run of it, as ``adding`` tells of one; ``why_of`` reads its end. Raises SpecError."""
    about = f"What the damage of {parent.lanes[at].label} comes from"
    return adding(parent, [lane for _, lane in _variants(parent, at)], store, owner, about)


def why_of(parent: Record, at: int, finished: Finished) -> Why:
    kinds = [kind for kind, _ in _variants(parent, at) if kind is not None]
    return why(parent.lanes[at], finished.record, finished.arrays, kinds)


def _variants(parent: Record, at: int) -> list[tuple[Kind | None, Lane]]:
    """The lane as it is, and with each cause taken out that can be; of what kind it is."""
    lane = parse_spec(parent.spec).lanes[at]
    if not lane.quantizes:
        raise SpecError(f"{lane.label} quantizes nothing, so nothing can be taken out of it.")
    found: list[tuple[Kind | None, Lane]] = [(None, lane.model_copy(update={"label": "as it is"}))]
    for kind, label, rules in _causes(lane, parent.environment.layers):
        kept = lane.model_dump(mode="json", include={"prefill", "select"})
        with suppress(SpecError):  # a rule that nothing would be left for: the whole lane is in fp16 then
            found.append((kind, Lane(label=label, rules=tuple(rules), **kept)))
    return found


def _causes(lane: Lane, layers: int) -> Iterator[tuple[Kind, str, list[Rule]]]:
    rules = list(lane.every_rule)
    for tensor in ("keys", "values"):
        yield "tensors", f"{tensor} in fp16", [Rule(method="fp16", tensors=tensor), *rules]
    for third, name in enumerate(THIRDS if layers >= len(THIRDS) else ()):
        some = tuple(range(layers * third // 3, layers * (third + 1) // 3))
        words = f"{name} third in fp16 ({some[0]}-{some[-1]})"
        yield "layers", words, [Rule(method="fp16", layers=some), *rules]
    with suppress(SpecError):  # a method that has no such windows
        yield "windows", "no full-precision windows", [_without_windows(rule) for rule in rules]


def _without_windows(rule: Rule) -> Rule:
    return rule.with_options(sink_tokens=0, recent_tokens=0) if rule.build().quantizes else rule
