"""The answer: which lane to deploy under a memory, a context and a tolerance, how sure that is, and what it rests on.

Imports studies for the evidence, sizing for bytes, inspection and decision for what a study alone does not say, and
analysis, complaints, methods, models, pipeline, presets, record and spec. Start at ``choice``, then ``answer``;
``advise`` leads from a model or a study to the answer.
"""
