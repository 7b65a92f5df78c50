"""Memory that is really free, whether a run fits in it, and what happens when it did not after all."""

import ctypes
import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import torch

from kvq_core.errors import LimitError

CGROUPS = Path("/sys/fs/cgroup")
UNKNOWN = 1 << 62
_SPARE: list[Callable[[], None]] = []
_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h
# kernel files of the two versions: the limit, what is used, and where in memory.stat stands what of it can be dropped
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_bytes(device: torch.device | str = "cpu") -> int:
    """Bytes a run could take on a device now.

    On a GPU what the driver has and what torch holds without using it, or UNKNOWN where the GPU is lent for each run
    and is not here to be asked; otherwise what the system can give without swapping, or what is left of the container's
    limit where that is less.
    """
    device = torch.device(device)
    if device.type == "cuda":
        try:
            unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            return int(torch.cuda.mem_get_info(device)[0]) + unused
        except (RuntimeError, AssertionError):
            return UNKNOWN
    left = [psutil.virtual_memory().available, *filter(None, map(_left_in, _groups()))]
    return max(0, min(left))


def hold_spare(give_back: Callable[[], None]) -> None:
    """Say how to give back what is only held to save time: called whenever something else needs the room."""
    _SPARE.append(give_back)


def room_for(needed: int, device: torch.device | str = "cpu") -> int:
    """``free_bytes``; where they are fewer than needed, after what is only held to save time was given back."""
    free = free_bytes(device)
    if needed <= free or not _SPARE:
        return free
    give_back_spare()
    return free_bytes(device)


def give_back_spare() -> None:
    """Give back what is only held to save time."""
    for give_back in _SPARE:
        give_back()
    release_memory()


def _groups() -> Iterator[Path]:
    """Folders of the control groups this process is in, from its own up to the root; inside a container it sees its
    own group as the root."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers not in ("", "memory"):
            continue
        root = CGROUPS / controllers
        folder = root / path.lstrip("/")
        while folder != root and root in folder.parents:
            yield folder
            folder = folder.parent
        yield root


def _left_in(group: Path) -> int | None:
    """Bytes left of a control group's limit; None where it has none."""
    for limit, used, droppable in _FILES:
        try:
            most = int((group / limit).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            return most - int((group / used).read_text()) + int(stat.get(droppable, 0))
        except (OSError, ValueError):  # "max": no limit
            continue
    return None


def shortage(needed: int, free: int, tokens: int, lanes: int) -> str | None:
    """Why a run of so many tokens and lanes that needs so many bytes does not fit, and what would; None where it fits.

    What it needs grows with its tokens, nearly in proportion.
    """
    if needed <= free:
        return None
    fewer = f"about {tokens * free // needed:,} tokens, prompt and answer together, would fit"
    advice = "shorten the prompt, ask for fewer new tokens" + (" or remove lanes" if lanes > 1 else "")
    return (
        f"This run needs about {needed / 1e9:.2f} GB of memory beside the model, and {free / 1e9:.2f} GB are free. "
        f"With {lanes} lane{'s' * (lanes != 1)} {fewer}: {advice}."
    )


def share_arena() -> None:
    """Let the threads of this process allocate from one arena of glibc. For a program to call, before they start: it is
    the whole process's, for good, so no run does it.

    By default they get up to eight arenas a core, so as not to wait for one another. The threads of a server come and
    go, in the end every arena has held a run, and ``release_memory`` cannot return the free upper end of any but the
    first: up to 64 MB of each.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def release_memory() -> None:
    """Return to the system what this process has freed.

    glibc's allocator keeps it: an arena only shrinks at its upper end, where one small block that is still in use holds
    up hundreds of megabytes below it. ``malloc_trim`` hands over all whole pages in between. Other allocators have no
    such call and need none.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was not enough, on a GPU or on the machine itself."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    )


@contextmanager
def memory_errors_as_limits() -> Iterator[None]:
    """Turn running out of memory into a LimitError, and give back what the failed work held, so that the next works.

    What was computed is held by the frames the error passed through: they are emptied first.
    """
    where = ""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)
        where = "The GPU's memory" if isinstance(error, torch.OutOfMemoryError) else "The machine's memory"
    if not where:
        return
    give_back_spare()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    raise LimitError(
        f"{where} ran out and the run was stopped; what it held is free again. Shorten the prompt, ask for fewer new "
        "tokens, or remove lanes."
    ) from None
