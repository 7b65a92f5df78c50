"""Work stops where its owner does not want it any more."""

from contextvars import copy_context
from threading import Thread

import pytest

from kvq_core.errors import KvqError
from kvq_core.machine.owner import demand_wanted, owned
from kvq_core.studies.tasks import SUITES, suite, words_of


def test_work_without_an_owner_is_wanted_and_an_owner_s_also_in_threads():
    demand_wanted()
    refused = []

    def work():
        try:
            demand_wanted()
        except KvqError as error:
            refused.append(str(error))

    with owned(lambda: False):
        thread = Thread(target=copy_context().run, args=[work])
        thread.start()
        thread.join()
        with owned(lambda: True):
            demand_wanted()
    demand_wanted()
    assert len(refused) == 1 and "stopped" in refused[0]


def test_prompts_are_made_only_while_they_are_wanted(monkeypatch):
    made = []
    monkeypatch.setattr(SUITES["chain_sums"], "sample", lambda *_: made.append(1) or (_ for _ in ()).throw(KeyError))
    with owned(lambda: False), pytest.raises(KvqError, match="was stopped"):
        suite("chain_sums", 100_000)
    assert not made


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_s_words_are_known_before_its_prompts_are_made(name):
    """Never more than there are: nothing that would be taken is refused."""
    from ui.service.admission import WORD

    options = {"lengths": [200, 60]} if "lengths" in SUITES[name].model_fields else {}
    longest, total = words_of(name, n=12, **options)
    made = [each.prompt or each.messages[0].content for each in suite(name, 12, **options)]
    words = [len(text.split()) for text in made]
    assert longest <= max(words) and sum(map(len, made)) >= WORD * total
    assert longest >= (200 if options else 8)
