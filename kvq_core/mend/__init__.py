"""A model's file changed in a few small tensors, so that a format can hold its cache: docs/mend.md has the mathematics.

Imports models, methods and codecs, engine for the divergence, servers, presets and spec for texts, and studies
for intervals. Start at ``mend``, then ``choose`` and ``fold``; ``gguf_file`` and ``folder`` write.
"""
