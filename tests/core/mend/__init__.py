"""Mending: edits, what they are chosen by, and the files they are written into."""
