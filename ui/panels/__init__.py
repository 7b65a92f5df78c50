"""The panels beside form and views: launch, answers, scorecard, share, history, tour, training, measuring, claims.

Imports everything of the page but layout and api. Start at ``launch``.
"""
