"""For the documents: how often a study's intervals hold what they should, in simulation."""

from benchmarks.measured import figures, table


def intervals_part() -> str:
    found = figures("intervals")
    if not found:
        return "Not measured yet: `python benchmarks/intervals.py`."
    rows = [
        (f"{each['log_sd']:g}", str(each["prompts"]), f"{each['covered']:.1%}", f"{each['apart']:.1%}")
        for each in found["rows"]
    ]
    head = "Standard deviation of log KLD | Prompts | Intervals that hold the mean | Equal lanes told apart"
    return f"{table(head, *rows)}\n\n{found['studies']:,} studies a row, {found['resamples']:,} resamples an interval."
