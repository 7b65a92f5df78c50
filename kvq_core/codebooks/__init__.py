"""Codebooks learned offline from real text: where the text comes from, training, files."""
