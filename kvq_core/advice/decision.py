"""A decision: what was asked, the advice and its grounds, kept in the store under a hash of all that."""

import hashlib
import json
from typing import Any

from pydantic import ValidationError

from kvq_core.advice.ask import CONTEXT, Ask, Tolerance, engine_of
from kvq_core.advice.grounds import Grounds
from kvq_core.advice.report import Advice
from kvq_core.complaints import first_line
from kvq_core.errors import SpecError, StoreError, excerpt
from kvq_core.record.beside import is_id, read_beside, write_beside
from kvq_core.record.store import Store
from kvq_core.sizing.fit import memory_of
from kvq_core.spec import canonical_json
from kvq_core.spec.part import SpecPart

VERSION = 1  # raised whenever what is kept changes its form
_NAME = "decisions/{}.json"


class DecisionRequest(SpecPart):
    """What was asked, in the words it was given in: at most one of ``memory``, ``cache`` and ``bits``."""

    memory: str | None = None
    cache: str | None = None
    bits: float | None = None
    context: int = CONTEXT
    batch: int = 1
    tolerance: str = "close"
    engine: str | None = None
    batched_tokens: int | None = None

    @classmethod
    def of(cls, **given: Any) -> "DecisionRequest":
        """Raises SpecError for a value of another kind, and for what cannot be asked."""
        told = {name: value for name, value in given.items() if value not in (None, "")}
        try:
            asked = cls.model_validate({**told, "tolerance": str(told.get("tolerance", "close"))})
        except ValidationError as error:
            raise SpecError(first_line(error, cls)) from None
        asked.ask()
        return asked

    def ask(self) -> Ask:
        """Read. Raises SpecError for what cannot be."""
        return Ask(
            tolerance=Tolerance.parse(self.tolerance),
            context=self.context,
            batch=self.batch,
            memory=memory_of(self.memory) if self.memory else None,
            cache=memory_of(self.cache) if self.cache else None,
            bits=self.bits,
            engine=engine_of(self.engine),
            batched_tokens=self.batched_tokens,
        )


class Decision(SpecPart):
    """``asked`` of a study and what came of it."""

    version: int = VERSION
    asked: DecisionRequest
    advice: Advice
    grounds: Grounds

    @property
    def id(self) -> str:
        """Of all it says: another answer has another id."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()[:16]

    @property
    def canonical(self) -> str:
        return canonical_json(self.model_dump(mode="json"))


def keep_decision(decision: Decision, store: Store) -> str:
    """Its id, under which it is there from now on. Raises StoreError where the store takes nothing more."""
    write_beside(store, _NAME.format(decision.id), decision.canonical.encode())
    return decision.id


def stored_decision(id: str, store: Store) -> Decision:
    """Raises StoreError where there is none of that id."""
    data = read_beside(store, _NAME.format(id)) if is_id(id) else None
    try:
        held: Any = None if data is None else json.loads(data)
        if isinstance(held, dict) and held.get("version") == VERSION:
            return Decision.model_validate(held)
    except (ValueError, ValidationError):
        pass
    raise StoreError(f"Decision {excerpt(id[:40])} is not in this store. Check the link, or decide again.")
