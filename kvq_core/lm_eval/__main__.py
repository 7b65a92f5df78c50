"""``python -m kvq_core.lm_eval``: lm-eval's own command line, which has no place to plug models in, with ours."""

import importlib.util
import sys

from kvq_core.errors import KvqError, SpecError


def main() -> int:
    """Its exit status; 2 for anything a person can put right, in one line."""
    try:
        if importlib.util.find_spec("lm_eval") is None:
            raise SpecError("lm-eval is not installed; pip install -r requirements-studies.txt brings it.")
        from lm_eval.__main__ import cli_evaluate

        import kvq_core.lm_eval.model  # noqa: F401  registers the model

        cli_evaluate()
    except KvqError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
