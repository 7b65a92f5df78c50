"""The study that ships: that of today, whole, and known to a store that goes on from it."""

import pytest

from kvq_core.record.store import open_store
from kvq_core.studies.cells import plan
from kvq_core.studies.estimate import estimate
from kvq_core.studies.example import adopt, example_spec, packaged_ids, packaged_studies
from kvq_core.studies.stored_plan import kept_plan
from kvq_core.studies.study import stored_study


def test_it_is_the_one_that_its_file_asks_for_and_whole() -> None:
    (id,) = packaged_ids()
    known = kept_plan(id, packaged_studies())
    assert known.id == id and known.spec.canonical() == example_spec().canonical()
    found = stored_study(known, packaged_studies())
    assert found.done == len(known.cells) == 24 and len(found.rows) == 24 * len(known.spec.comparison.lanes)


@pytest.mark.second_model
def test_its_runs_have_the_ids_that_they_have_today(second_model, tmp_path) -> None:
    """Else `make examples`: a change of results has made it another study."""
    planned = plan(example_spec())
    assert packaged_ids() == (planned.id,)
    store = open_store(str(tmp_path))
    assert estimate(planned, store=store).todo == 24
    adopt(planned.id, store)
    assert estimate(planned, store=store).todo == 0
    assert stored_study(planned, store).summary() == stored_study(planned, packaged_studies()).summary()
