"""What is known of the computer a run is on: its files here; memory and threads are to follow.

Imports errors alone. Start at ``files``: the one way this project writes a file.
"""
