"""A finished run as data and as bytes: fields, arrays with shape and unit, files with checksums, old versions.

Imports spec for the names of its options; nothing that computes. Start at ``fields``.
"""
