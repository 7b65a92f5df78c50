"""GGUF files as models: the header is read and judged, then the weights are converted once into KVQ_HOME.

Nothing that changes what a model computes is passed over: whatever of a header is neither used nor known to change
nothing is refused by name. Imports errors, machine, settings and ``models``. Start at ``source``, then ``header`` and
``conversion``.
"""
