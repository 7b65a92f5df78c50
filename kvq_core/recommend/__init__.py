"""Which cache to deploy under a memory, a context and a tolerance, which format for which layers, how sure that is, and
what it rests on: a study's rows, what each layer costs alone, engines' limits and flags, prompts held out.

Imports every package that measures or counts, and studies and inspection. Start at ``recommend``, then ``decision`` and
``answer``; for layers at ``solver``, then ``sensitivity``.
"""
