"""What is known of the computer a run is on: files, memory and threads.

Imports errors alone. Start at ``files``: the one way this project writes a file.
"""
