"""Which format for which layers, with its evidence: what each layer costs alone, the policy of least predicted KLD
under a budget of bytes, free and inside what an engine loads, its flags, and a run that verifies it.

Imports studies for prompts, pipeline for runs, and analysis, methods, models, presets, record, sizing and spec. Start
at ``solver``, then ``sensitivity`` for where its numbers come from and ``verify`` for whether they hold.
"""
