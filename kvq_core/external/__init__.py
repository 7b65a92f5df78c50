"""Real engines, run as they are: what they answer under their own cache types, measured beside what is simulated here.

Imports the pipeline and what a run is made of, for the same types simulated. Start at ``llama_cpp``, then
``engine_runs``.
"""
