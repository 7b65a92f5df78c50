"""commvq: see method."""

from kvq_core.methods.commvq.method import CommVQ

__all__ = ["CommVQ"]
