"""Sentences generated from a record: what a measurement means here, one module a view.

Imports records, figures' data and html; runs nothing.
"""

from ui.words.damage import damage
from ui.words.views import overall, spectra, storage, subspace

__all__ = ["damage", "overall", "spectra", "storage", "subspace"]
