"""Bytes in words."""

_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3))


def size_text(nbytes: float, digits: int = 2) -> str:
    """``812 KB``, ``1.10 GB``, ``17 GB``: in powers of 1000, as memories are sold. Three digits under ten of a unit,
    so many from there on."""
    for unit, scale in _UNITS:
        if (count := nbytes / scale) >= 1:
            decimals = 2 if count < 10 else max(0, digits - (2 if count < 100 else 3))
            return f"{count:,.{decimals}f} {unit}"
    return f"{nbytes:.0f} B"
