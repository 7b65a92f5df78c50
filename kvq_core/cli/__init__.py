"""The command line: one module a command, results on stdout, progress and errors on stderr.

Imports anything, but only within the command that needs it, so that ``--help`` answers at once. Start at ``main``.
"""
