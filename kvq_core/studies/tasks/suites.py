"""Suites by name, and the prompts that one makes from a seed."""

from zlib import crc32

from numpy.random import default_rng
from pydantic import ValidationError

from kvq_core.complaints import first_line
from kvq_core.errors import SpecError, did_you_mean, excerpt
from kvq_core.machine.owner import demand_wanted
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.tasks.extraction import Extraction
from kvq_core.studies.tasks.long_answer import Long
from kvq_core.studies.tasks.needles import Needle, NeedleMultiKey, NeedleMultiQuery, NeedleMultiValue
from kvq_core.studies.tasks.sample import Suite
from kvq_core.studies.tasks.sums import ChainSums
from kvq_core.studies.tasks.tool_use import ToolUse
from kvq_core.studies.tasks.variables import VariableTracking
from kvq_core.studies.tasks.word_counts import CommonWords, FrequentWords

MOST = 100_000  # prompts of one suite

SUITES: dict[str, type[Suite]] = {
    "needle": Needle,
    "needle_multi_key": NeedleMultiKey,
    "needle_multi_query": NeedleMultiQuery,
    "needle_multi_value": NeedleMultiValue,
    "variable_tracking": VariableTracking,
    "common_words": CommonWords,
    "frequent_words": FrequentWords,
    "chain_sums": ChainSums,
    "json": Extraction,
    "tools": ToolUse,
    "long": Long,
}


def suite(name: str, n: int = 40, seed: int = 0, **options: object) -> tuple[StudyPrompt, ...]:
    """``n`` prompts of a suite, equal on every machine; more of one seed begin with the fewer.

    Raises SpecError for a suite, an option or a value that is not there.
    """
    made, stream, width = _options(name, n, seed, options), crc32(name.encode()), max(4, len(str(n)))
    return tuple(_prompt(made, i, [seed, stream, i], f"{name}-{i + 1:0{width}}") for i in range(n))


def words_of(name: str, n: int = 40, seed: int = 0, **options: object) -> tuple[int, int]:
    """About how many words the longest of such prompts has, and all together, at least; none is made.

    Raises SpecError as ``suite`` does.
    """
    made = _options(name, n, seed, options)
    counts = [made.words(i) for i in range(n)]
    return max(counts), sum(counts)


def _prompt(made: Suite, number: int, seed: list[int], id: str) -> StudyPrompt:
    demand_wanted()
    return made.sample(number, default_rng(seed)).model_copy(update={"id": id})


def _options(name: str, n: int, seed: int, options: dict[str, object]) -> Suite:
    """The suite with its options. Raises SpecError."""
    kind = _known(name)
    for what, given, least, most in (("n", n, 1, MOST), ("seed", seed, 0, 2**63 - 1)):
        if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
            raise SpecError(
                f"suite {name}: {what} = {excerpt(given)} is not allowed; give a whole number from {least} to {most}."
            )
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        raise SpecError(first_line(error, kind, f"suite {name}")) from None


def _known(name: str) -> type[Suite]:
    if name not in SUITES:
        raise SpecError(f"Unknown suite {excerpt(name)}.{did_you_mean(name, SUITES)} Available: {', '.join(SUITES)}.")
    return SUITES[name]
