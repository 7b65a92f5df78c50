"""The methods as plain data, for the command line, the API and the documents."""

import inspect
from dataclasses import asdict
from typing import Any

from kvq_core.methods import knobs, methods


def describe_methods() -> list[dict[str, Any]]:
    """Every method as plain data: name, title, paper, documentation, deviations and knobs."""
    return [
        {
            "name": name,
            "title": cls.title,
            "paper": cls.paper,
            "doc": inspect.cleandoc(cls.__doc__ or ""),
            "deviations": list(cls.deviations),
            "knobs": [asdict(k) for k in knobs(cls)],
        }
        for name, cls in methods().items()
    ]
