"""The HTTP and MCP interface: endpoints, the schemas of what they take and give, and the stream of a run.

Imports the panels for launching and the service. Start at ``endpoints``.
"""
