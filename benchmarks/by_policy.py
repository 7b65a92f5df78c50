"""For the documents: policies of layers on prompts they have not seen, beside uniform lanes; what scoring layers and
an answer from nothing take."""

from typing import Any

from benchmarks.measured import figures, table
from kvq_core.recommend.held_out import WIN

TARGET_MIN = 25  # minutes on two cores
APART = 1.5  # times that predicted and measured are to differ by at most
# what an answer was asked for, by the part of benchmarks/advise.py
ASKED = {
    "uniform": "formats of all engines, a tolerance that one of them meets",
    "engine": "formats of one engine, a tolerance that one of them meets",
    "layers": "formats of all engines, a tolerance that none meets: layers scored, policies verified",
}


def policies_part() -> str:
    found = figures("policies")
    if not found:
        return "Not measured yet: `python benchmarks/policies.py`."
    rows = [_row(part, bits, case) for part in found.values() for bits, case in part.get("budgets", {}).items()]
    head = (
        "Model | Prompts | Bits | Policy predicted | Measured | Apart by | Best uniform of the candidates | Over the "
        "policy | Of what engines ship | Which | Over the policy | Ends in fp16 | Answer"
    )
    said = (
        "Mean KLD in nats over so many prompts that were not scored; as many others were. Candidates: q4_0 and q8_0 "
        "beside fp16. Uniform lanes take no more bytes than the budget: of the candidates, keys and values apart, and "
        "of the formats that engines ship without windows the ten of the most bytes, as they are, with centred keys "
        "and rotated; the better of the two is compared with the policy. Apart by: the larger of predicted and "
        f"measured over the smaller, at most {APART} aimed at. Ends in fp16: first and last two layers, in brackets "
        "where that takes more bytes."
    )
    speeds = filter(None, (_speed(part) for part in found.values()))
    return "\n\n".join([table(head, *rows), said, _aims(found), *speeds])


def _aims(found: dict[str, Any]) -> str:
    """How many cases reach what was aimed at."""
    cases = [case for part in found.values() for case in part.get("budgets", {}).values()]
    near = sum(_apart(case["policy"]) <= APART for case in cases)
    wins = sum(_over(case.get("of_candidates", case["uniform"]), case) >= WIN for case in cases)
    answers = sum(case["beats"] for case in cases)
    beside = sum(case.get("of_shipped") is not None for case in cases)
    return (
        f"Of {len(cases)} cases the prediction is within a factor of {APART} of what was measured in {near}; the "
        f"policy loses at most half of what the best uniform lane of its own candidates does in {wins}. All that "
        f"engines ship ran beside {beside} of them. The answer is the policy in {answers} and a uniform lane in "
        f"{len(cases) - answers}."
    )


def _apart(told: dict[str, Any]) -> float:
    low, high = sorted((told["predicted"], told["measured"]))
    return float(high / low)


def _over(uniform: dict[str, Any], case: dict[str, Any]) -> float:
    """How many times what the policy loses a uniform lane does."""
    return float(uniform["measured"] / case["policy"]["measured"])


def _row(part: dict[str, Any], bits: str, case: dict[str, Any]) -> tuple[str, ...]:
    policy, uniform, ends = case["policy"], case["uniform"], case["ends"]
    own, shipped = case.get("of_candidates", uniform), case.get("of_shipped")
    apart = f"{ends['measured']:.3g}"
    return (
        part["title"],
        str(part["prompts"]),
        bits,
        f"{policy['predicted']:.3g}",
        f"{policy['measured']:.3g}",
        f"{_apart(policy):.2f}",
        f"{own['measured']:.3g}",
        f"{_over(own, case):.3g}",
        "not measured" if shipped is None else f"{shipped['measured']:.3g}",
        "" if shipped is None else shipped["title"],
        "" if shipped is None else f"{_over(shipped, case):.3g}",
        apart if ends["bytes"] <= case["budget"] else f"({apart})",
        "the policy" if case["beats"] else f"the uniform lane, not {WIN} times as far off",
    )


def _speed(part: dict[str, Any]) -> str | None:
    """Nothing for a part whose scores were kept before this script ran."""
    told, spent = part.get("speed"), part["scoring_cpu_s"]
    if told is None and not spent:
        return None
    if told is None:
        each = sum(spent) / len(spent)
        return (
            f"{part['title']}: scoring one prompt of the table took {each:.0f} CPU seconds of one thread for "
            f"{part['lanes_scored']} lanes, {each / part['lanes_scored']:.2f} a lane."
        )
    one, whole = told["pass_cpu_s"], told["total_cpu_s"] / 60
    return (
        f"{part['title']}: a pass of {told['lanes']} lanes over a prompt of about 500 tokens with 32 scored positions "
        f"took {one:.0f} CPU seconds of one thread, {one / told['lanes']:.2f} a lane. Six formats, all layers, keys "
        f"and values apart over {told['prompts']} prompts are {told['passes']} such passes a prompt, {whole:.0f} CPU "
        f"minutes in all: {whole / 2:.1f} minutes on two idle cores, of {TARGET_MIN} that were aimed at."
    )


def advice_part() -> str:
    found = figures("advise")
    if not found:
        return "Not measured yet: `python benchmarks/advise.py`."
    rows = []
    for name, part in found.items():
        what = f"{ASKED[name]}: {part['lanes']} lanes, {part['prompts']} prompts of {part['tokens']} tokens"
        took = f"{part['wall_s'] / 60:.1f} min ({part['cpu_s'] / 60:.1f} CPU min)"
        rows.append((what, part["label"] or part["kind"], took, f"{part['target_min']} min"))
    threads = sorted({part["threads"] for part in found.values()})
    (title,) = {part["title"] for part in found.values()}
    said = f"{title}, {' or '.join(map(str, threads))} cores, 48 new tokens, nothing stored before but the model."
    return f"{table('From nothing | Answer | Took | Target', *rows)}\n\n{said}"
