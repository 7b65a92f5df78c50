"""Training of codebooks: texts, keys and values collected from a model, EM, checkpoints, and what the page offers.

Imports models and codebooks; no run is needed. Start at ``train``.
"""
