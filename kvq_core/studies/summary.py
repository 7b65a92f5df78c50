"""What a study's rows amount to: a line a lane, by group of prompts, and of tasks with an answer."""

from typing import TYPE_CHECKING, Any

import numpy as np

from kvq_core.analysis.confidence import EDGES
from kvq_core.analysis.verdict import TIERS, Figures, Placed, tier
from kvq_core.studies.intervals import FEWEST, mean_interval, share_interval, tail_interval

if TYPE_CHECKING:
    import pandas as pd

Line = dict[str, Any]
LONG = 256  # scored positions of an answer over which KLD has a slope that says something
WIDE = 10  # times its mean: an interval that reaches beyond it says only that there are too few prompts
_MEANS = (
    "acceptance",
    "tokens_a_step",
    "key_bits",
    "value_bits",
    "cache_bytes",
    "weights_bytes",
    "kv_ratio",
    "storage_floor",
    "kernel_floor",
)


def lane_lines(frame: "pd.DataFrame") -> list[Line]:
    """Every lane of every model, in the order of the study. KLD in nats, shares from 0 to 1; figures are of the prompts
    that have them, and null where none has."""
    found = []
    for (model, label), rows in frame.groupby(["model", "lane"], sort=False):
        done = rows.dropna(subset=["kld_mean"])
        line = {"label": label, "model": model, **_kld(done), "failed": int(len(rows) - rows["error"].isna().sum())}
        found.append({**line, **(_figures(done) | _placed(done, line) if len(done) else {})})
    return found


def _placed(rows: "pd.DataFrame", line: Line) -> Line:
    """The tier of a lane over the prompts, by the rule that a run's lane is read by, and the figure that decides it;
    None of too few prompts for an interval."""
    found = None if line["kld_low"] is None else placed(rows, line["kld_low"], line["kld_high"])
    return {"tier": found and found.word, "tier_reason": found and found.reason}


def placed(rows: "pd.DataFrame", low: float, high: float) -> Placed | None:
    """The tier of a lane's rows, a prompt each, whose mean KLD in nats lies between ``low`` and ``high``; None of too
    few scored positions."""
    apart = int((rows["flips"] - rows["near_tie_flips"]).clip(lower=0).sum())
    p99, repeats = float(np.percentile(pooled_column(rows, "kld"), 99)), float(rows["repeats"].eq(True).mean())
    return tier(Figures(low, high, p99, apart, int(rows["scored"].sum()), repeats))


def is_wide(line: Line) -> bool:
    """Whether a line's interval ends beyond WIDE times its mean."""
    return line["kld_high"] is not None and line["kld_high"] > WIDE * line["kld_mean"]


def wide_note(lines: list[Line]) -> str | None:
    """Lines of ``lane_lines`` whose intervals are wide, and why; None where there are none."""
    found = sorted(filter(is_wide, lines), key=lambda line: line["kld_mean"] / line["kld_high"])
    if not found:
        return None
    first, count = found[0], len(found)
    share = first["worst_kld"] / (first["kld_mean"] * first["prompts"])
    reach = "1 interval reaches" if count == 1 else f"{count} intervals reach"
    return (
        f"{reach} beyond {WIDE} times the mean: {first['prompts']} prompts are too few there, since one carries most "
        f"of it ({first['label']} on {first['model']}: {share:.0%} from {first['worst_prompt']!r})."
    )


def group_lines(frame: "pd.DataFrame") -> list[Line]:
    """The KLD of every lane in every group of prompts, where prompts have groups."""
    named = frame[frame["group"] != ""].dropna(subset=["kld_mean"])
    return [
        {"group": group, "model": model, "label": label, **_kld(rows)}
        for (group, model, label), rows in named.groupby(["group", "model", "lane"], sort=False)
    ]


def task_lines(frame: "pd.DataFrame") -> list[Line]:
    """How many of the tasks that the reference gets right each lane gets right, in all and by group."""
    judged = frame.dropna(subset=["reference_correct"])
    whole = judged.groupby(["model", "lane"], sort=False)
    named = judged[judged["group"] != ""].groupby(["group", "model", "lane"], sort=False)
    return [_task("", model, lane, rows) for (model, lane), rows in whole] + [
        _task(group, model, lane, rows) for (group, model, lane), rows in named
    ]


def _kld(rows: "pd.DataFrame") -> Line:
    """Mean over prompts of the mean KLD, with its interval."""
    if not len(rows):
        return {"prompts": 0, "kld_mean": None, "kld_low": None, "kld_high": None}
    found = mean_interval(rows["kld_mean"].to_numpy())
    return {"prompts": len(rows), "kld_mean": found.value, "kld_low": found.low, "kld_high": found.high}


def _figures(rows: "pd.DataFrame") -> Line:
    worst = rows.loc[rows["kld_mean"].idxmax()]
    tail = tail_interval([np.asarray(kld, dtype=float) for kld in rows["kld"]])
    scored = int(rows["scored"].sum())
    line = {
        "kld_p95": float(np.percentile(rows["kld_mean"], 95)),
        "worst_prompt": str(worst["prompt"]),
        "worst_kld": float(worst["kld_mean"]),
        "tail_rank": tail and tail.rank,
        "tail": tail and tail.value,
        "tail_low": tail and tail.low,
        "tail_high": tail and tail.high,
        "scored": scored,
        "flips": float(rows["flips"].sum() / scored),
        "near_tie_flips": float(rows["near_tie_flips"].sum() / scored),
        "tiers": _shares(rows["tier"]),
    }
    means = {name: _mean(rows[name]) for name in _MEANS}
    weights, cache = means["weights_bytes"], means["cache_bytes"]
    means["total_bytes"] = None if weights is None or cache is None else weights + cache
    return {**line, **means, "confidence": _buckets(rows), **_structure(rows), **_slope(rows)}


def _shares(words: "pd.Series") -> dict[str, float]:
    """The share of prompts in each tier, and of those too close to call, where there are any."""
    shares = {each.word: float((words == each.word).mean()) for each in TIERS}
    between = float(words.notna().mean()) - sum(shares.values())
    return {**shares, **({"too close to call": between} if between > 1e-9 else {})}


def _slope(rows: "pd.DataFrame") -> Line:
    """Rise of KLD over 1,000 steps of an answer, by least squares, mean over the prompts whose answers are long enough,
    with its interval: whether error piles up while a lane answers. None where no answer is."""
    from scipy.stats import linregress, ttest_1samp

    long = [np.asarray(kld, dtype=float) for kld in rows["kld"] if len(kld) >= LONG]
    found = [1000 * float(linregress(np.arange(len(kld)), kld).slope) for kld in long]
    ends = ttest_1samp(found, 0).confidence_interval(0.95) if len(found) >= FEWEST else (None, None)
    values = (float(np.mean(found)) if found else None, *(None if end is None else float(end) for end in ends))
    return dict(zip(("kld_slope", "kld_slope_low", "kld_slope_high"), values, strict=True))


def _mean(column: "pd.Series") -> float | None:
    return None if column.isna().all() else float(column.mean())


def pooled_column(rows: "pd.DataFrame", name: str) -> np.ndarray:
    """A column of lists, an entry a scored position, of all rows."""
    return np.concatenate([np.asarray(values) for values in rows[name]])


def _buckets(rows: "pd.DataFrame") -> list[Line]:
    """Tokens of all prompts by how sure the reference is of its next token."""
    probs, kld, same = (
        pooled_column(rows, "top_prob"),
        pooled_column(rows, "kld"),
        pooled_column(rows, "same_top").astype(bool),
    )
    of = np.clip(np.searchsorted(EDGES, probs, side="right") - 1, 0, len(EDGES) - 2)
    found = []
    for at, (low, high) in enumerate(zip(EDGES, EDGES[1:], strict=False)):
        own = of == at
        figures = {"kld_mean": float(kld[own].mean()), "flips": float((~same[own]).mean())} if own.any() else {}
        found.append({"low": low, "high": high, "share": float(own.mean()), "kld_mean": None, "flips": None, **figures})
    return found


def _structure(rows: "pd.DataFrame") -> Line:
    """KLD of braces, quotes, digits and names of tools, and of all other tokens."""
    marked, kld = pooled_column(rows, "structural").astype(bool), pooled_column(rows, "kld")
    parts = {"structural_kld": kld[marked], "other_kld": kld[~marked]}
    means = {name: float(values.mean()) if len(values) else None for name, values in parts.items()}
    return {"structural_share": float(marked.mean()), **means}


def _task(group: str, model: str, label: str, rows: "pd.DataFrame") -> Line:
    counted = rows[rows["reference_correct"].astype(bool)]
    base = share_interval(len(counted), len(rows))
    counted = counted.dropna(subset=["correct"])  # a lane that failed has said nothing that could be judged
    right = share_interval(int(counted["correct"].astype(bool).sum()), len(counted))
    line: Line = {"group": group, "model": model, "label": label, "asked": len(rows), "counted": len(counted)}
    for name, found in (("reference", base), ("right", right)):
        line |= {name: found and found.value, f"{name}_low": found and found.low, f"{name}_high": found and found.high}
    return line
