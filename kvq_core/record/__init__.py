"""A finished run as data and as bytes: fields, arrays with shape and unit, files with checksums, old versions.

Imports nothing that computes. Start at ``fields``.
"""
