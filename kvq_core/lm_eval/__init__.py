"""lm-eval on a quantized cache: ``python -m kvq_core.lm_eval --model kvq-explorer --model_args model=...,method=...``.

The only place that imports EleutherAI's lm_eval, which is optional (requirements-studies.txt); what it asks of a lane
runs in the engine as a comparison's lanes do. Imports engine, errors, models and spec. Start at ``scoring``, then
``model``.
"""
