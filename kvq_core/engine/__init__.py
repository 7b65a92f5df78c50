"""One run's rows in lock step: prefill once, encode every lane, decode all rows of a batch together; and their numbers:
fidelity of the logits, bytes as stored, rate.

Imports models, methods, codecs and spec, and record for the fields it fills; it does not know the captures. Start at
``decode``, then ``rows``; ``fidelity`` has the metrics.
"""
