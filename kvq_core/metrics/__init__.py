"""Numbers of a run: fidelity of the logits, bytes as stored, rate.

Imports engine and capture for what they hold; writes no record. Start at ``fidelity``.
"""
