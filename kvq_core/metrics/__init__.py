"""Numbers people compare lanes by: fidelity of the logits, and stored bytes."""
