"""A model's file changed in a few small tensors, so that engines may quantize its cache; the model stays the same.

Two edits, docs/mend.md has their mathematics: key biases of the RoPE pairs that hardly turn are left out, and scales
are folded into the query and key projections. Imports models and methods, which compute, external, which runs
llama.cpp, and studies for intervals. Start at ``mend``, then ``choose``; ``gguf_file`` and ``folder`` write.
"""
