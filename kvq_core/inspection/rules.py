"""What decides whether a layer is at risk, and what has been published about families of models: data of presets."""

import re
import tomllib
from functools import cache

from pydantic import Field

from kvq_core.frozen import Frozen
from kvq_core.shipped import shipped

SHIPPED = shipped("inspection")


class Threshold(Frozen):
    """A number above which something is taken for true, with what it was chosen by."""

    value: float = Field(gt=0)
    evidence: str = Field(min_length=1)


class Rules(Frozen):
    """``score_error``: from which a layer is at risk, in nats; ``constant``: from which centring counts as its cure, as
    the quotient of the score errors without and with it; ``gain``: from which a remedy counts as one, as the quotient
    of the KLDs."""

    score_error: Threshold
    constant: Threshold
    gain: Threshold


class Published(Frozen):
    """A published collapse: of which models, by a pattern for their names, what was seen, and where it is said."""

    family: str
    names: str
    said: str
    source: str

    def meant(self, *names: str) -> bool:
        return any(re.search(self.names, name, re.IGNORECASE) for name in names)


@cache
def rules() -> Rules:
    return Rules.model_validate(tomllib.loads((SHIPPED / "rules.toml").read_text(encoding="utf-8")))


@cache
def published() -> tuple[Published, ...]:
    found = tomllib.loads((SHIPPED / "families.toml").read_text(encoding="utf-8"))
    return tuple(Published.model_validate(each) for each in found["published"])
