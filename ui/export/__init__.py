"""What leaves the page: the run as one page, static SVG of figures, the summary card, the code that reproduces a run.

Imports figures, words, html, service and the selection. Start at ``page``.
"""
