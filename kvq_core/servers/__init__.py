"""Real engines, run as they are: what they answer under their own cache types, measured beside what is simulated here.

Imports pipeline, models, methods, spec and record, for the same types simulated, and machine for files. Start at
``llama_cpp``, then ``engine_runs``.
"""
