"""Numbers of a run: fidelity of the logits, bytes as stored, rate.

Imports engine and methods for what they hold, record for its fields, and divergence; writes no record. Start at
``fidelity``.
"""
