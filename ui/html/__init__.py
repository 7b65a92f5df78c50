"""Text to markup: escaping, numbers, colours, cards, tables, verdicts, the status line.

Imports analysis, claims, events, inspection, record, sizing and spec for what they tell; no figure and no service.
Start at ``escape``, the one way to quote a person.
"""
