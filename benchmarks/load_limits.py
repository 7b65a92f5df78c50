"""The limits of a public instance under visitors who ask for more: who is refused, how often, and what each is told."""

import asyncio
from typing import Any

import httpx

from benchmarks.load_visitors import Plan, Visit, Visitor
from benchmarks.load_visits import link, pasted, prompt_of, summary, usual

# A short line and a low rate, so that a few visitors reach them; the other limits are a public instance's own.
PUBLIC = {"KVQ_MODELS": "smollm2-135m-instruct-q4_1", "KVQ_MAX_LINE": "8", "KVQ_RUNS_PER_HOUR": "6"}


async def at_once(address: str, plan: Plan, hosts: list[str]) -> list[Visit]:
    """A visitor from each of these addresses: when all pages are open, everybody presses Run."""
    prompts = [f"{prompt_of(number)} Asked from {host}." for number, host in enumerate(hosts)]
    visitors = [Visitor(address, plan, host, c=link(prompt, 32)) for host, prompt in zip(hosts, prompts, strict=True)]
    await asyncio.gather(*(visitor.open() for visitor in visitors))
    visits = await asyncio.gather(*(v.press_run(Visit(prompt)) for v, prompt in zip(visitors, prompts, strict=True)))
    for visitor, visit in zip(visitors, visits, strict=True):
        if visit.outcome == "done":
            await visitor.see(visit)
        await visitor.close()
    return visits


async def limited(address: str, store: str) -> list[dict[str, Any]]:
    """A row a limit: how many asked, got a run and were refused, each with the reason. Addresses are told as a proxy
    would tell them."""
    async with httpx.AsyncClient(timeout=120) as http:
        plan = Plan((await http.get(f"{address}/config")).json())
    pages = await at_once(address, plan, ["198.51.100.1"] * 5)
    rows = [_row("runs of one visitor at a time", "KVQ_MAX_WAITING", pages, store)]
    hasty = [await usual(address, plan, 10 + number, host="198.51.100.2") for number in range(7)]
    rows.append(_row("runs of one visitor an hour", "KVQ_RUNS_PER_HOUR", hasty, store))
    crowd = await at_once(address, plan, [f"192.0.2.{number}" for number in range(1, 17)])
    rows.append(_row("runs in line, all visitors together", "KVQ_MAX_LINE", crowd, store))
    costly = await pasted(address, plan, "one two three " * 2400, "203.0.113.1")  # fits into the model's context
    rows.append(_row("tokens x caches of a run", "KVQ_MAX_WORK", [costly], store))
    book = await pasted(address, plan, "x" * 1_000_000, "203.0.113.2")
    rows.append(_row("characters of a prompt", "KVQ_MAX_CHARACTERS", [book], store))
    return rows


def _row(limit: str, variable: str, visits: list[Visit], store: str) -> dict[str, Any]:
    found = summary(visits, store)
    count = found["outcomes"]
    return {
        "limit": limit,
        "variable": variable,
        "asked": len(visits),
        "ran": count.get("done", 0),
        "refused": count.get("refused", 0),
        "reasons": found["reasons"],
        "mixed_up": found["mixed_up"],
    }
