"""Training of codebooks: texts, keys and values collected from a model, EM, checkpoints, and what the page offers.

Imports models, methods, codebooks, spec and kernels; no run is needed. Start at ``train``.
"""
