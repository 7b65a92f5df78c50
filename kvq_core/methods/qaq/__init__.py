"""qaq: see method."""

from kvq_core.methods.qaq.method import Qaq

__all__ = ["Qaq"]
