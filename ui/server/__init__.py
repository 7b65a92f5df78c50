"""What stands before Gradio: guard, request size, health, ZeroGPU, and Gradio's parts that are replaced.

Imports service, export and html; not the panels. Start at ``guard``; modules named ``gradio_*`` touch what
Gradio keeps private.
"""
