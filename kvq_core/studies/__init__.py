"""Studies: many prompts through the same lanes, with statistics over prompts and tasks that have an answer.

Imports pipeline, analysis, store, record, spec and what lies below them; nothing of the page. Start at ``prompts``.
"""
