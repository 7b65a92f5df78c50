"""Shared prefill, packed stores with incremental working copies, and one lock-step decode for all rows."""
