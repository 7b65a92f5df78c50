"""The place Study: prompts in, an estimate, a study at work in everybody's line, and its figures.

Imports studies, presets, figures, words, html, form, panels, service, and of views the frame of figures. Start at
``place``; ``asked`` makes a study of what the form holds, ``work`` computes it. Other places take ``prompts``,
``access``, ``turns`` and ``watching``.
"""
