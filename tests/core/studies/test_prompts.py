"""One prompt of a study: what it must hold."""

import pytest

from kvq_core.errors import SpecError
from kvq_core.studies.prompts import StudyPrompt


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"id": "a"}, "neither prompt nor messages"),
        ({"prompt": "  "}, "neither prompt nor messages"),
        ({"prompt": "Hello", "answer": "x"}, "answer and verifier go together"),
        ({"prompt": "Hello", "verifier": "contains"}, "answer and verifier go together"),
    ],
)
def test_what_asks_nothing_or_cannot_be_judged_is_refused(fields: dict, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        StudyPrompt(**fields)
