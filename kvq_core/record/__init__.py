"""A finished run as data and as bytes: fields, arrays with shape and unit, files with checksums, old versions, events;
and the store that keeps runs: any fsspec place, committed by a manifest, with a quota, shared by links.

Imports settings, logs and machine, and spec for the names of its options; nothing that computes. Start at ``fields``,
then ``store``; ``layouts`` is how files lie there.
"""
