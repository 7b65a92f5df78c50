"""What a cache takes before anything has run: the one counter of planned bytes, what engines reserve, what fits.

Imports methods, spec, codecs and errors. Start at ``count``; ``fit`` answers from a configuration, the number of its
weights and the tables of ``presets/sizing`` alone, and loads neither torch nor transformers.
"""
