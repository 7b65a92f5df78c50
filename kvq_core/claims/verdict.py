"""From the numbers of several texts to a verdict, by the rule the data states."""

from collections.abc import Mapping, Sequence

from kvq_core.claims.board import ClaimResult, Criterion, Spread, TextResult, Verdict
from kvq_core.claims.criteria import ClaimRule, Judged, Paper
from kvq_core.claims.measures import Numbers


def spreads(texts: Sequence[Numbers]) -> dict[str, Spread]:
    """Mean, lowest and highest of every number."""
    return {
        name: Spread(mean=sum(values) / len(values), min=min(values), max=max(values))
        for name in (texts[0] if texts else ())
        for values in [[numbers[name] for numbers in texts]]
    }


def satisfies(criteria: Sequence[Criterion], numbers: Numbers) -> bool:
    return all(criterion.holds(numbers) for criterion in criteria)


def claim_verdict(criteria: Sequence[Criterion], texts: Sequence[Numbers], rule: ClaimRule) -> tuple[Verdict, str]:
    """The verdict and, where there is none, the reason: all criteria for the means and in enough of the texts."""
    if len(texts) < rule.fewest_texts:
        return "cannot be tested here", f"{len(texts)} texts were measured; the rule asks for {rule.fewest_texts}."
    means = {name: spread.mean for name, spread in spreads(texts).items()}
    held = sum(satisfies(criteria, numbers) for numbers in texts)
    enough = held * rule.share[1] >= len(texts) * rule.share[0]
    return ("holds" if satisfies(criteria, means) and enough else "does not hold here"), ""


def result_of(
    paper: Paper, claim: Judged, numbers: Mapping[str, Numbers], word: Verdict, why: str, answers: int = 0
) -> ClaimResult:
    """A claim as its criteria say it, with the verdict and the numbers of every text or case."""
    said = ("id", "sentence", "where", "quote", "quoted_from", "less", "setting", "note")
    return ClaimResult(
        **{name: getattr(claim, name) for name in said},
        paper=paper.title,
        arxiv=paper.arxiv,
        criterion=claim.holds_if,
        verdict=word,
        reason=why,
        answers=answers,
        numbers=spreads(list(numbers.values())),
        texts=tuple(TextResult(text=t, holds=satisfies(claim.criteria(), n), numbers=n) for t, n in numbers.items()),
    )
