"""svdq: see method."""

from kvq_core.methods.svdq.method import Svdq

__all__ = ["Svdq"]
