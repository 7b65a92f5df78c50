"""Where what ships lies: beside ``kvq_core`` in a checkout, inside ``kvq_explorer`` where a wheel is installed."""

from pathlib import Path

_BESIDE = Path(__file__).resolve().parent.parent


def root() -> Path:
    """The folder of ``presets``, ``ui`` and ``app.py``. What others install as ``presets`` is not taken for ours."""
    inside = _BESIDE / "kvq_explorer"
    return inside if (inside / "presets").is_dir() else _BESIDE


def shipped(*names: str) -> Path:
    """A file or folder of ``presets``: data that ship."""
    return root().joinpath("presets", *names)
