"""What a model's cache takes, from its configuration alone: layers' kinds, formats' bytes, what engines reserve, the
weights beside them, and what fits into a memory.

Imports errors and the window of codecs; neither torch nor transformers, so that it answers at once and for models that
no run takes. Start at ``fit``; families, formats and engines are data in ``presets/sizing``.
"""
