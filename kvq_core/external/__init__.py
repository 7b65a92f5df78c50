"""Real engines, run as they are: what they answer under their own cache types, measured beside what is simulated here.

Imports errors and models, for the header of a file. Start at ``llama_cpp``, then ``engine_runs``.
"""
