"""One run's rows in lock step: prefill once, encode every lane, decode all rows of a batch together.

Imports models, methods, codecs, spec and divergence; what is looked at meanwhile it does not know. Start at
``decode``, then ``rows``.
"""
