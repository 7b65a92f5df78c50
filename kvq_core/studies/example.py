"""The study that ships with the app: its rows and its plan. Its runs are computed where one is opened.

``python -m kvq_core.studies.example`` computes it again, after a change of results or of presets/learn/study.toml.
"""

import sys

from kvq_core.errors import KvqError
from kvq_core.machine.progress import calling
from kvq_core.presets import FOLDER
from kvq_core.record.beside import names
from kvq_core.record.store import Store, open_store
from kvq_core.studies.cells import plan
from kvq_core.studies.estimate import workers_here
from kvq_core.studies.rows import keep_rows, read_rows
from kvq_core.studies.spec import StudySpec, read_study
from kvq_core.studies.stored_plan import keep_plan, kept_plan
from kvq_core.studies.study import run_plan

FILE = FOLDER / "learn" / "study.toml"
STUDIES = FOLDER / "studies"


def example_spec() -> StudySpec:
    """Its prompts inside. Raises SpecError where its files say something impossible."""
    found = read_study(FILE)
    return found.whole(found.prompts.read()[0])


def packaged_studies() -> Store:
    """The store that holds it."""
    return open_store(str(FOLDER))


def packaged_ids() -> tuple[str, ...]:
    """Of the studies that ship; none where their files are missing."""
    return tuple(name.rsplit("/", 1)[-1] for name in names(packaged_studies(), STUDIES.name))


def adopt(id: str, store: Store) -> None:
    """Let a store know what is known of a study that ships: what goes on from there computes none of it again."""
    shipped = packaged_studies()
    if not read_rows(store, id):
        keep_plan(store, kept_plan(id, shipped))
        keep_rows(store, id, [row for rows in read_rows(shipped, id).values() for row in rows])


def main() -> int:
    """Compute it in the user's store, keep its figures, and throw out those of another. It needs both its models."""
    store, shipped = open_store(), packaged_studies()
    planned = plan(example_spec())
    workers = workers_here(planned, store)
    report = calling(lambda *at: print(*at, file=sys.stderr))
    result = run_plan(planned, store, workers=workers, progress=report)
    if result.done < len(planned.cells):
        print(next(iter(result.failed.values()), "not all cells are done"), file=sys.stderr)
        return 1
    for id in packaged_ids():
        shipped.fs.rm(str(STUDIES / id), recursive=True)
    keep_plan(shipped, planned)
    keep_rows(shipped, planned.id, result.rows)
    print(planned.id)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KvqError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
