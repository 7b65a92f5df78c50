"""Tasks with an answer, made from a seed without a network, and the verifiers that judge what was written.

Imports complaints, errors, machine, spec and ``studies.prompts``; the words it draws from are in ``presets/tasks``. A
suite is a class whose fields are its options (``sample.Suite``). Start at ``suites``, then ``needles``; ``verifiers``
judges.
"""

from kvq_core.studies.tasks.suites import SUITES, suite, words_of
from kvq_core.studies.tasks.verifiers import VERIFIERS, judge

__all__ = ["SUITES", "VERIFIERS", "judge", "suite", "words_of"]
