"""The progress bar of the commands that take a while."""

import sys

from kvq_core.machine.interrupt import raise_lost


class Bar:
    """A bar on stderr that vanishes when the work ends; nothing at all where stderr is a file or a pipe.

    Call it with what is being done, how much of it is done and how much there is; it raises a Ctrl-C that was lost.
    ``timed``: with its rate and the time left, counted anew for each thing that is done.
    """

    def __init__(self, timed: bool = False):
        self.timed, self.doing = timed, ""

    def __enter__(self) -> "Bar":
        from tqdm import tqdm

        shape = None if self.timed else "{desc} {bar} {n_fmt}/{total_fmt}"
        self.bar = tqdm(disable=None, leave=False, file=sys.stderr, bar_format=shape)
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()

    def __call__(self, doing: str, done: int, total: int) -> None:
        raise_lost()
        if self.timed and doing != self.doing:
            self.bar.reset(total)
        self.doing = doing
        self.bar.total, self.bar.n, self.bar.unit_scale = total, done, total >= 1_000_000
        self.bar.set_description_str(doing)
