"""What policies engines load, in the version that was read, and the flags that say one.

A format's name there is its method's ``cache_types``; ``flags`` writes what ``engine_flags`` reads back.
"""

from collections.abc import Callable, Sequence
from itertools import groupby

from kvq_core.engines import engines
from kvq_core.errors import SpecError, excerpt
from kvq_core.recommend.layer_plans import FP16, Candidate, LayerPlan
from kvq_core.recommend.solver import Costs, SolvedPolicy, ends_apart, free, one_each, skip_list

Solve = Callable[[Costs, int], SolvedPolicy]
_SOLVERS: dict[str, Solve] = {"skip": skip_list, "each": one_each, "ends": ends_apart}
# engines whose policies are known, as the command names them
SPACES = {name.lower(): name for name, row in engines().items() if row.policies}


def engine_title(engine: str) -> str:
    """An engine's name. Raises SpecError for one whose policies are not known."""
    if engine not in SPACES:
        raise SpecError(f"engine = {excerpt(engine)} is not allowed; policies are known of {', '.join(SPACES)}.")
    return SPACES[engine]


def version_of(engine: str) -> str:
    """What was read of it."""
    return engines()[engine_title(engine)].version


def words_of(engine: str, candidates: Sequence[Candidate]) -> dict[str, str]:
    """What the engine, as the command names it, calls each candidate that it has, and the unquantized cache."""
    return words_in(engine_title(engine), candidates)


def words_in(name: str, candidates: Sequence[Candidate]) -> dict[str, str]:
    """``words_of`` of an engine by its name."""
    found = {each.name: word for each in candidates if (word := each.method.cache_types.get(name))}
    return {**found, FP16: engines()[name].plain or ""}


def solve(costs: Costs, budget: int, engine: str | None, candidates: Sequence[Candidate]) -> SolvedPolicy:
    """The best policy of an engine's space, or of all. Raises SpecError where the engine has none of the candidates, or
    none of its policies fits."""
    if engine is None:
        return free(costs, budget)
    own = words_of(engine, candidates)
    if len(own) == 1:
        raise SpecError(
            f"{engine_title(engine)} has none of the formats {', '.join(costs.names[:-1])}; score some that it has."
        )
    solver = _SOLVERS[engines()[SPACES[engine]].policies or ""]
    found = solver(costs.only(tuple(own)), budget)
    return SolvedPolicy.of(found.plan, costs)


def flags(engine: str, plan: LayerPlan, candidates: Sequence[Candidate]) -> str:
    """The command for a policy of the engine's space."""
    name = engine_title(engine)
    words, command = words_of(engine, candidates), engines()[name].command
    if engines()[name].policies == "skip":
        stored = [each for each in plan.keys if each != FP16]
        skipped = [str(layer) for layer, each in enumerate(plan.keys) if each == FP16]
        said = command.format(both=words[stored[0]] if stored else words[FP16])
        return f"{said} {engines()[name].skip} {' '.join(skipped)}" if stored and skipped else said
    runs = {letter: _runs(names) for letter, names in (("k", plan.keys), ("v", plan.values))}
    base = {letter: words[found[1][0]] for letter, found in runs.items()}
    said = command.format(keys=base["k"], values=base["v"])
    for letter, (first, _, last) in runs.items():
        for where, (each, count) in (("first", first), ("last", last)):
            said += f" -ct{letter}-{where} {words[each]},{count}" if count else ""
    return said


def _runs(names: Sequence[str]) -> list[tuple[str, int]]:
    """First, middle and last layers: a format and how many; the middle is what most are where there are fewer runs."""
    found = [(name, len(list(each))) for name, each in groupby(names)]
    if len(found) == 1:
        return [("", 0), found[0], ("", 0)]
    if len(found) == 2:
        return [found[0], found[1], ("", 0)] if found[0][1] < found[1][1] else [("", 0), *found]
    return found
