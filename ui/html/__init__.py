"""Text to markup: escaping, numbers, colours, cards, tables, verdicts, the status line.

Imports records and conclusions from them, no figure and no service. Start at ``escape``, the one way to quote a person.
"""
