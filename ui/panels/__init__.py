"""The panels beside form and views: launch, answers, scorecard, share, history, tour, training, measuring, claims.

Imports form, views, export, figures, words, selection, html and service. Start at ``launch``.
"""
