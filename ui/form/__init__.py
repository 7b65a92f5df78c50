"""The left column: a comparison as values of widgets, generated from the fields of specs and methods.

Imports service and html. Start at ``values``; ``*_panel`` modules lay the widgets out.
"""
