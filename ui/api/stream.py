"""A run as plain data while it goes on and when it is over, for those who ask through the API."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import gradio as gr

from kvq_core.analysis.floors import above_floor, lane_of
from kvq_core.analysis.scored import At
from kvq_core.analysis.verdict import verdict
from kvq_core.errors import KvqError
from kvq_core.models import with_model
from kvq_core.record.events import Encoding, Event, Filling, Finished, Loading, Prefill, Replaying, Step, Summarizing
from kvq_core.record.fields import Record
from kvq_core.spec import ComparisonSpec, Lane
from ui.api.schemas import LaneResult, LaneText, Result, RunProgress
from ui.service.access import key_for
from ui.service.address import link
from ui.service.jobs import Job, follow
from ui.service.line import LinePlace
from ui.service.services import Services, visitor
from ui.words.answer import answer_line


def run_progress(
    services: Services, spec: ComparisonSpec, session: str, request: gr.Request
) -> AsyncGenerator[RunProgress]:
    """Submit a comparison and tell how far it is, from its place in line to its result.

    ``session`` is what cancels it. Raises KvqError where it may not start, fails or is cancelled.
    """
    return _told(services, lambda: services.submit(with_model(spec), session, visitor(request)), request)


def added_progress(
    services: Services, parent: Record, lane: Lane, session: str, request: gr.Request
) -> AsyncGenerator[RunProgress]:
    """``run_progress`` of a lane that is added to a finished run."""
    return _told(services, lambda: services.extend(parent, lane, session, visitor(request)), request)


async def _told(services: Services, submit: Callable[[], Job], request: gr.Request) -> AsyncGenerator[RunProgress]:
    job = await asyncio.to_thread(submit)
    services.jobs.watch(job.ticket)
    now = _waiting(services.line.place(job.ticket))
    yield now
    async for news in follow(job, services.line):
        if isinstance(news, LinePlace):
            yield _waiting(news)
            continue
        for event in _worth_telling(news):
            now = _after(now, event)
            if isinstance(event, Finished):
                services.records.put(event.record, event.arrays)
                now = {**now, "result": _result(event, services, request)}
            yield now
    if job.error is not None:
        raise job.error
    if job.cancelled:
        raise KvqError("The run was cancelled; nothing was saved. Send it again to run it.")


def _worth_telling(news: list[Event]) -> list[Event]:
    """The newest of the steps, which tells all before it, and what came last."""
    return [event for event in news[:-1] if isinstance(event, Step)][-1:] + news[-1:]


def _waiting(place: LinePlace) -> RunProgress:
    return RunProgress(stage="waiting", done=0, total=place.ahead, reference="", lanes=[], result=None)


def _after(now: RunProgress, event: Event) -> RunProgress:
    """The progress once an event has happened; texts stay until newer ones arrive."""
    match event:
        case Loading(done=done, total=total):
            return {**now, "stage": "loading", "done": done, "total": total or 1}
        case Prefill(done=done, total=total):
            return {**now, "stage": "prefill", "done": done, "total": total}
        case Encoding(index=index, total=total):
            return {**now, "stage": "encoding", "done": index, "total": total}
        case Filling(done=done, total=total):
            return {**now, "stage": "filling", "done": done, "total": total}
        case Step(done=done, total=total, tokens=tokens, lanes=lanes):
            texts = [
                LaneText(
                    label=lane.label,
                    text="".join(lane.tokens),
                    scored=len(lane.kld),
                    kld_mean=sum(lane.kld) / len(lane.kld) if lane.kld else None,
                    first_divergence=lane.first_divergence,
                    error=lane.error,
                )
                for lane in lanes
            ]
            return {
                **now,
                "stage": "decoding",
                "done": done,
                "total": total,
                "reference": "".join(tokens),
                "lanes": texts,
            }
        case Replaying(done=done, total=total):
            return {**now, "stage": "decoding", "done": done, "total": total}
        case Summarizing():
            return {**now, "stage": "measuring", "done": 0, "total": 1}
        case Finished():
            return {**now, "stage": "finished", "done": 1, "total": 1}


def _result(event: Finished, services: Services, request: gr.Request) -> Result:
    record = event.record
    return Result(
        run=record.id,
        key=key_for(services, record.id),
        link=link(record.id, request),
        answer=answer_line(record, event.arrays),
        model=record.environment.model,
        prompt_tokens=len(record.reference.prompt_token_ids),
        reference=record.reference.text,
        lanes=[_lane(event, index) for index in range(len(record.lanes))],
        noise_floor=_lane(event, "noise"),
        kernel_floor=None if record.kernel_floor is None else _lane(event, "kernel"),
        seconds=record.timing.total_s,
        reused=event.reused,
        unkept=event.unkept,
    )


def _lane(event: Finished, at: At) -> LaneResult:
    """Figures a lane has, null where it has none."""
    lane = lane_of(event.record, at)
    found = verdict(event.record, event.arrays, at)
    figures: dict[str, Any] = {"n_scored": 0, "verdict": found.word}
    figures["tier_reason"] = found.placed and found.placed.reason
    figures["above_floor"] = above_floor(event.record, event.arrays, at)
    for part in filter(None, (lane, lane.memory, lane.metrics)):
        figures.update(vars(part))
    return cast(LaneResult, {name: figures.get(name) for name in LaneResult.__annotations__})
