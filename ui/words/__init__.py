"""Sentences generated from a record: what a measurement means here."""

from ui.words.damage import damage
from ui.words.views import overall, spectra, storage, subspace

__all__ = ["damage", "overall", "spectra", "storage", "subspace"]
