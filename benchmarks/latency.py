"""The papers' claims about time, judged on the GPU benchmark's results."""

import re
from collections.abc import Mapping
from typing import Any

from kvq_core.claims.board import Verdict
from kvq_core.claims.criteria import LatencyClaim, papers
from kvq_core.claims.latency import DeviceBoard, Latency
from kvq_core.claims.measures import Numbers
from kvq_core.claims.verdict import result_of, satisfies

NO_CASE = "No case of the GPU benchmark measures it."


def latency_json(boards: tuple[DeviceBoard, ...]) -> str:
    """The file of these boards."""
    return Latency(boards=boards, said=_said(boards)).model_dump_json(indent=1) + "\n"


def judge_device(facts: Mapping[str, str], changed: bool, cases: Mapping[str, Mapping[str, Any]]) -> DeviceBoard:
    """Every paper's claims about time by the benchmark's ``cases`` of a device, each the numbers by their names."""
    results = []
    for paper in papers().values():
        for claim in paper.latency:
            read = {case: _read(claim, cases, match) for case in cases if (match := re.fullmatch(claim.cases, case))}
            numbers = {case: claim.reported(each) for case, each in read.items() if each}
            held = all(satisfies(claim.criteria(), each) for each in numbers.values())
            word: Verdict = "not measured" if not numbers else "holds" if held else "does not hold here"
            results.append(result_of(paper, claim, numbers, word, "" if numbers else NO_CASE))
    return DeviceBoard(
        **{name: facts[name] for name in ("device", "torch", "triton")},
        kernels=facts["kernels"][:8],
        changed=changed,
        claims=tuple(results),
    )


def _read(claim: LatencyClaim, cases: Mapping[str, Mapping[str, Any]], match: re.Match[str]) -> Numbers:
    """What a claim reads of a case; nothing where the case, or another one that it reads, lacks a number."""
    read: dict[str, float] = {}
    for name, path in claim.numbers.items():
        case, _, number = path.rpartition(":")
        found = cases.get(match.expand(case) if case else match[0], {}).get(number)
        if found is None:
            return {}
        read[name] = float(found["ms"] if isinstance(found, Mapping) else found)
    return read


def _said(boards: tuple[DeviceBoard, ...]) -> dict[str, tuple[str, ...]]:
    said: dict[str, tuple[str, ...]] = {}
    for title, claim in ((paper.title, claim) for paper in papers().values() for claim in paper.latency if claim.said):
        found = [each for board in boards for each in board.claims if each.id == claim.id]
        if any(each.verdict == "does not hold here" for each in found):
            texts = [text for each in found for text in each.texts]
            of, failed = [text.numbers[claim.said_of] for text in texts], sum(not text.holds for text in texts)
            words = claim.said.format(low=min(of), high=max(of), failed=failed, cases=len(texts))
            said[title] = (*said.get(title, ()), words)
    return said
