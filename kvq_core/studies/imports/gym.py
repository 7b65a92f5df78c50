"""Questions of reasoning-gym (Stojanovski et al., 2025, arXiv:2505.24760), an optional package."""

import importlib
import importlib.util
import re
from typing import Any

from kvq_core.errors import SpecError, excerpt
from kvq_core.studies.prompts import StudyPrompt

BY_VALUE = ("chain_sum", "products")  # whose own judge compares numbers by value, as ``number`` does


def reasoning_gym(dataset: str, n: int = 40, seed: int = 0, **options: Any) -> tuple[StudyPrompt, ...]:
    """``n`` questions of one of its data sets, whose options are the package's own.

    An answer that is a number is judged by ``number``, any other by ``contains``: data sets that judge in a way of
    their own, because several answers are right, are not imported, but for those of ``BY_VALUE``. Raises SpecError for
    the others, and where the package or the data set is not there.
    """
    if importlib.util.find_spec("reasoning_gym") is None:
        raise SpecError("reasoning-gym is not installed; pip install reasoning-gym brings it.")
    package, base = (importlib.import_module(name) for name in ("reasoning_gym", "reasoning_gym.dataset"))
    try:
        made = package.create_dataset(dataset, size=n, seed=seed, **options)
    except (ValueError, TypeError, AssertionError) as error:  # how it refuses names and options
        said = " ".join(str(error).split())[:200].rstrip(" .") or type(error).__name__
        raise SpecError(f"reasoning-gym refuses data set {excerpt(dataset)} as asked for: {said}.") from None
    if dataset not in BY_VALUE and type(made).score_answer is not base.ProceduralDataset.score_answer:
        raise SpecError(
            f"reasoning-gym's data set {excerpt(dataset)} judges answers by a program of its own; take one with a "
            "single right answer, such as chain_sum."
        )
    return tuple(_prompt(made[i], dataset, i) for i in range(n))


def _prompt(entry: dict[str, Any], dataset: str, number: int) -> StudyPrompt:
    answer = str(entry["answer"])
    return StudyPrompt(
        id=f"{dataset}-{number + 1:04}",
        group=dataset,
        prompt=entry["question"],
        answer=answer,
        verifier="number" if _is_number(answer) else "contains",
        facts={"source": "reasoning-gym"},
    )


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+(\.\d+)?", text) is not None
