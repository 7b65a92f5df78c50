"""What computes a stored run again: its comparison as a file, and the command with it."""

import json

from kvq_core.errors import KvqError
from kvq_core.record.fields import Record
from kvq_core.spec import parse_spec

FILE = "comparison.json"
LONGEST = 16_000  # characters of a comparison that are still shown inside a command


def comparison_json(record: Record) -> str:
    """The run's comparison as a file that the command line takes: what differs from the defaults, plain ASCII."""
    try:
        told = json.loads(parse_spec(record.spec).canonical())
    except KvqError:  # of another version: as it was
        told = record.spec
    return json.dumps(told, indent=1)


def command(record: Record) -> str:
    """Shell lines that compute the run again; with a long prompt they expect the downloaded file."""
    run = f"python -m kvq_core compare --spec {FILE}"
    told = comparison_json(record)
    # No line of JSON reads EOF: texts are quoted, and a quoted text has no line breaks.
    return run if len(told) > LONGEST else f"cat > {FILE} <<'EOF'\n{told}\nEOF\n{run}"


def conditions(record: Record) -> str:
    """When the command gives a run of the same id."""
    env = record.environment
    return (
        f"It gives run {record.id} again with the same model ({env.model_hash or env.weights_hash}), kind of device "
        f"({env.device}), number format ({env.dtype.removeprefix('torch.')}) and results version "
        f"({record.results_version}); elsewhere the comparison is the same and the id another."
    )
