"""Studies: many prompts through the same lanes, with statistics over prompts and tasks that have an answer.

Imports pipeline, analysis, models, store, record, spec, presets, links and complaints; nothing of the page. Start at
``prompts``.
"""
