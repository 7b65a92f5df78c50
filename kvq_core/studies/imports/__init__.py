"""Prompts of other people's benchmarks, made into rows of a file that a study reads. None of their packages is needed
by anything else.

Imports errors, machine, spec and ``studies.prompts``. ``bfcl`` reads the JSON of bfcl-eval without importing it,
``reasoning_gym`` asks that package for questions, ``write_jsonl`` writes what either gives. Start at docs/tasks.md.
"""

from kvq_core.studies.imports.bfcl import bfcl
from kvq_core.studies.imports.gym import reasoning_gym
from kvq_core.studies.imports.jsonl import write_jsonl

__all__ = ["bfcl", "reasoning_gym", "write_jsonl"]
