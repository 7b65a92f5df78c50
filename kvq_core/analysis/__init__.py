"""Conclusions from a finished record: verdict, explanation, two runs compared, bytes against context length.

Imports record, spec and the methods' descriptions; no torch, no model. Start at ``verdict``.
"""
