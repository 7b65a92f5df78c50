"""What stands before Gradio: guard, request size, health, ZeroGPU, and Gradio's parts that are replaced.

Imports service and export; not the panels. Start at ``guard``; modules named ``gradio_*`` touch what
Gradio keeps private.
"""
