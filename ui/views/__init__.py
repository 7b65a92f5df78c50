"""The tabs beside the answers: one module a view, its figures, words and selection.

Imports figures, words, form, html, selection and service. Start at ``tabs``, then ``view``, the contract of all views.
"""
