"""What a cache takes before anything has run: the one counter of planned bytes, what engines reserve, what fits.

Imports methods, spec, engines and errors. Start at ``count``; ``fit`` answers from a configuration and the number of
its weights, by the counter and the rows of ``presets/sizing/engines.toml``.
"""
