"""Suites by name, and the prompts that one makes from a seed."""

from zlib import crc32

from numpy.random import default_rng
from pydantic import ValidationError

from kvq_core.complaints import first_line
from kvq_core.errors import SpecError, did_you_mean, excerpt
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
    kind = _known(name)
    for what, given, least, most in (("n", n, 1, MOST), ("seed", seed, 0, 2**63 - 1)):
        if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
            raise SpecError(
                f"suite {name}: {what} = {excerpt(given)} is not allowed; give a whole number from {least} to {most}."
            )
    try:
        made = kind.model_validate(options)
    except ValidationError as error:
        raise SpecError(first_line(error, kind, f"suite {name}")) from None
    stream, width = crc32(name.encode()), max(4, len(str(n)))
    prompts = (made.sample(i, default_rng([seed, stream, i])) for i in range(n))
    return tuple(p.model_copy(update={"id": f"{name}-{i:0{width}}"}) for i, p in enumerate(prompts, 1))


def _known(name: str) -> type[Suite]:
    if name not in SUITES:
        raise SpecError(f"Unknown suite {excerpt(name)}.{did_you_mean(name, SUITES)} Available: {', '.join(SUITES)}.")
    return SUITES[name]
