"""What visitors of ``make load`` do from opening the page to closing it, and what is told of many of them."""

import statistics
from collections import Counter
from typing import Any

import httpx

from benchmarks.load_visitors import Plan, Refused, Visit, Visitor

OBJECTS = "river bridge candle mirror garden ladder pillow basket hammer violin".split()
LANES = [{"method": "kivi"}]


def prompt_of(number: int) -> str:
    return f"Visitor {number} asks: what is a {OBJECTS[number % len(OBJECTS)]} made of?"


def link(prompt: str, new: int = 4) -> str:
    """What stands behind ``?c=``: a short comparison with one lane, which fills the form."""
    from kvq_core.spec import parse_spec
    from kvq_core.spec.links import encode

    return encode(parse_spec({"prompt": prompt, "max_new_tokens": new, "lanes": LANES, "capture": {"detail": "off"}}))


async def usual(address: str, plan: Plan, number: int, stop_at: str | None = None, host: str = "") -> Visit:
    """One visitor from opening the page with a link of their own to closing it."""
    prompt = prompt_of(number)
    visitor, visit = Visitor(address, plan, host, c=link(prompt, 200 if stop_at else 4)), Visit(prompt)
    try:
        await visitor.open()
        await visitor.press_run(visit, stop_at)
        return await visitor.see(visit) if visit.outcome == "done" else visit
    except (httpx.HTTPError, Refused) as error:
        visit.outcome, visit.reason = "unanswered", f"{type(error).__name__}: {error}"
        return visit
    finally:
        await visitor.close()


async def pasted(address: str, plan: Plan, prompt: str, host: str = "") -> Visit:
    """A visitor who puts a text of their own into the form and presses Run."""
    visitor = await Visitor(address, plan, host).open()
    try:
        return await visitor.press_run(Visit(), prompt=prompt)
    finally:
        await visitor.close()


def summary(visits: list[Visit], store: str) -> dict[str, Any]:
    """How the visits ended, whether each result is of the visitor's own prompt, and how long they waited."""
    from kvq_core.record.store import open_store

    runs = {visit.run: visit for visit in visits if visit.outcome == "done"}
    mixed = [v.prompt for id, v in runs.items() if open_store(store).load(id)[0].spec["prompt"] != v.prompt]
    waits = sorted(visit.wait for visit in runs.values()) or [0.0]
    return {
        "outcomes": dict(Counter(visit.outcome for visit in visits)),
        "runs": len(runs),
        "mixed_up": len(mixed),
        "told_a_wait": sum(any("starts in" in detail for _, _, detail in v.seen) for v in visits),
        "wait_s": {"median": statistics.median(waits), "max": waits[-1]},
        "reasons": dict(Counter(v.reason for v in visits if v.outcome in ("refused", "stopped", "unanswered"))),
    }
