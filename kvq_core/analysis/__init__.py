"""Conclusions from a finished record: verdict, explanation, two runs compared, bytes against context length.

Imports record, spec, sizing and the methods' descriptions; no model. Start at ``verdict``.
"""
