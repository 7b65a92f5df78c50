"""What leaves the page: the report, static SVG of figures, the summary card, the code that reproduces a run.

Imports figures, words, html, service and the selection. Start at ``report``.
"""
