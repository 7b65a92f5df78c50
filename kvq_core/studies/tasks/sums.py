"""Chains of sums, as reasoning-gym's chain_sum asks them (Stojanovski et al., 2025, arXiv:2505.24760)."""

from typing import ClassVar

from numpy.random import Generator
from pydantic import Field

from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.tasks.sample import Suite


class ChainSums(Suite):
    """Numbers added and subtracted in a row; the result may be negative."""

    title: ClassVar = "Chain sums"
    asks: ClassVar = "What a chain of additions and subtractions comes to."
    source: ClassVar = "reasoning-gym, arXiv:2505.24760"
    new_tokens: ClassVar = 48

    terms: int = Field(2, ge=2, le=32, description="Numbers in a chain.")
    digits: int = Field(1, ge=1, le=9, description="Digits of each number.")
    minus: bool = Field(False, description="Whether numbers are subtracted as well.")

    def sample(self, number: int, random: Generator) -> StudyPrompt:
        least = 10 ** (self.digits - 1)
        terms = random.integers(least, 10 * least, size=self.terms).tolist()
        signs = [1, *(1 - 2 * random.integers(0, 2, size=self.terms - 1) * self.minus).tolist()]
        chain = str(terms[0]) + "".join(
            f" {'+' if sign > 0 else '-'} {term}" for sign, term in zip(signs[1:], terms[1:], strict=True)
        )
        return StudyPrompt(
            group=f"{self.terms} terms",
            prompt=f"State the final answer to the following arithmetic problem: {chain} =",
            answer=sum(sign * term for sign, term in zip(signs, terms, strict=True)),
            verifier="number",
            facts={"terms": self.terms, "digits": self.digits},
        )
