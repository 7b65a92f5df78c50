"""The HTTP and MCP interface: endpoints, the schemas of what they take and give, and the stream of a run.

Imports service, study and decide, whose turns it takes, and words. Start at ``endpoints``.
"""
