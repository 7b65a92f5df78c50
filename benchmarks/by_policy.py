"""For the documents: policies of layers on prompts they have not seen, beside uniform lanes, and what scoring takes."""

from typing import Any

from benchmarks.measured import figures, table
from kvq_core.decision.verify import WIN

TARGET_MIN = 25  # minutes on two cores


def policies_part() -> str:
    found = figures("policies")
    if not found:
        return "Not measured yet: `python benchmarks/policies.py`."
    rows = [_row(part, bits, case) for part in found.values() for bits, case in part.get("budgets", {}).items()]
    head = (
        "Model | Prompts | Bits | Policy predicted | Measured | Best uniform of the candidates | Of what engines ship "
        "| Which | Ends in fp16 | Uniform / policy | Answer"
    )
    said = (
        "Mean KLD in nats over so many prompts that were not scored; as many others were. Candidates: q4_0 and q8_0 "
        "beside fp16. Uniform lanes take no more bytes than the budget: of the candidates, keys and values apart, and "
        "of the formats that engines ship without windows the ten of the most bytes, as they are, with centred keys "
        "and rotated; the better of the two is compared with the policy. Ends in fp16: first and last two layers, in "
        "brackets where that takes more bytes."
    )
    return "\n\n".join([table(head, *rows), said, *filter(None, (_speed(part) for part in found.values()))])


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
        f"{own['measured']:.3g}",
        "not measured" if shipped is None else f"{shipped['measured']:.3g}",
        "" if shipped is None else shipped["title"],
        apart if ends["bytes"] <= case["budget"] else f"({apart})",
        f"{uniform['measured'] / policy['measured']:.3g}",
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
