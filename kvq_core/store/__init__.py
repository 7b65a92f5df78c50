"""Where finished runs are kept: any fsspec place, committed by a manifest, with a quota, shared by links.

Imports record, settings and machine. Start at ``store``; ``layouts`` is how files lie there.
"""
