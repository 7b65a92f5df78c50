"""Sentences generated from a record: what a measurement means here, one module a view.

Imports analysis, record, studies, figures' data, selection and html; runs nothing. Start at ``views``.
"""

from ui.words.damage import damage
from ui.words.views import overall, spectra, storage, subspace

__all__ = ["damage", "overall", "spectra", "storage", "subspace"]
