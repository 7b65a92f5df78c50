"""Bounded measurements of what quantization does inside the model: scores, spectra, query subspace, errors."""
