"""``kvq-explorer``, and ``python -m kvq_explorer``: without arguments the page, in a browser; else one command."""

import gc
import os
import sys

from kvq_core import shipped
from kvq_core.machine import interrupt


def main() -> int:
    """Serve the page, or run the command that is asked for, and return its exit status."""
    return command() if sys.argv[1:] else page()


def command() -> int:
    gc.disable()  # what imports make lives to the end; looking for garbage in it is a sixth of the time to start
    _find_page()
    from kvq_core.cli.main import main as run

    gc.freeze()
    gc.enable()
    return run()


def page() -> int:
    interrupt.end_quietly()  # imports take seconds
    _find_page()
    import app

    interrupt.raise_again()
    try:
        return app.main(in_browser=has_browser())
    except KeyboardInterrupt:
        return 130


def has_browser() -> bool:
    """Whether a window can be opened. Without a display webbrowser would start one of the terminal's browsers."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def _find_page() -> None:
    """Put ``app``, ``ui`` and ``presets`` on the path, for this process alone: other packages have such names."""
    sys.path.insert(0, str(shipped.root()))


if __name__ == "__main__":
    sys.exit(main())
