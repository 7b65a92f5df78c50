"""Real engines and servers that run: what they answer under their own cache types, beside what is simulated here.

Imports engine, pipeline, models, methods, spec and record for the same types simulated, studies for prompts and
intervals, engines for what a server may hold, and store, settings and machine for what is kept. Start at ``dialects``,
then ``asking``; for an engine in this process at ``llama_cpp``, then ``engine_runs``.
"""
