"""What is looked at while a run goes on: scores, attention, cache errors, key spectra, distributions.

Imports engine, models, methods, spec and divergence; never metrics or records. Start at ``collect``, which owns one
run's captures, and ``plan``, which decides by bytes what fits.
"""
