"""Tasks with an answer, made from a seed without a network, and the verifiers that judge what was written.

Imports errors and ``studies.prompts``. Start at ``suite``.
"""
