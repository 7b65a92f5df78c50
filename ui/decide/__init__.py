"""The place Decide: three questions, one answer, and below it all that it rests on.

Imports advice and studies, figures, html, panels, service and views, and of study its prompts, turns and results.
Start at ``place``; ``asked`` reads the form, ``work`` computes in everybody's line, ``answer`` and ``evidence`` show.
"""
