"""One comparison from spec to record, and what goes with it: estimate, examples, the round trip of one tensor.

Imports every stage below it. Start at ``compare``; ``state`` holds a run in progress, ``assemble`` makes the record.
"""
