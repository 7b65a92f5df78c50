"""The page: panels, views and forms around records, drawn with Gradio and plotly.

Imports of kvq_core what tests/test_imports.py opens to it; nothing here computes. Start at ``layout``.
"""
