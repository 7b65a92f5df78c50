"""Training of codebooks: text, what a model caches of it, and the two learners."""
