"""Long context: what is recalled by length and depth, and KLD by how far into the text a token stands."""

from typing import TYPE_CHECKING, Any

import numpy as np

from kvq_core.studies.intervals import mean_interval, share_interval
from kvq_core.studies.prompts import StudyPrompt

if TYPE_CHECKING:
    import pandas as pd

Line = dict[str, Any]
MAP = ("words", "depth")  # what a suite knows of a prompt whose needle lies somewhere
FEWEST_BINS = 3  # powers of two below which there is no course along the text


def recall_lines(frame: "pd.DataFrame", prompts: tuple[StudyPrompt, ...]) -> list[Line]:
    """Right answers by length and depth of the text: a map a lane, as figure 2 of CommVQ (arXiv:2506.18879).

    ``asked`` counts prompts, ``counted`` those that the reference gets right, ``reference`` is their share; ``right``
    is the share of these that the lane gets right, with its Wilson interval. Nothing where prompts have no length and
    depth.
    """
    facts = {prompt.id: [prompt.facts[name] for name in MAP] for prompt in prompts if set(MAP) <= set(prompt.facts)}
    judged = frame[frame["prompt"].isin(facts)].dropna(subset=["reference_correct"])
    placed = judged.assign(**{name: [facts[id][at] for id in judged["prompt"]] for at, name in enumerate(MAP)})
    return [
        {"model": model, "label": label, "words": int(words), "depth": float(depth), **_recalled(rows)}
        for (model, label, words, depth), rows in placed.groupby(["model", "lane", *MAP], sort=False)
    ]


def _recalled(rows: "pd.DataFrame") -> Line:
    counted = rows[rows["reference_correct"].astype(bool)]
    right = share_interval(int(counted["correct"].fillna(False).astype(bool).sum()), len(counted))
    line: Line = {"tokens": float(rows["prompt_tokens"].mean()), "asked": len(rows), "counted": len(counted)}
    ends = {"right": right and right.value, "right_low": right and right.low, "right_high": right and right.high}
    return {**line, "reference": len(counted) / len(rows), **ends}


def position_lines(frame: "pd.DataFrame") -> list[Line]:
    """KLD by log2 of the position that reads the cache: of answers, and of what a lane read of the prompt through it.

    ``first`` is the power of two at which a bin begins. The prompt is the unit: the mean over prompts of a prompt's
    mean in the bin, with the interval of a study's means. Nothing where all lie in fewer than FEWEST_BINS bins.
    """
    found: dict[tuple[str, str, int], list[float]] = {}
    done = frame.dropna(subset=["kld_mean"])
    columns = ("model", "lane", "prompt_tokens", "kld", "prompt_at", "prompt_kld")
    for model, label, *row in zip(*(done[name] for name in columns), strict=True):
        for at, mean in _by_bin(*row):
            found.setdefault((model, label, at), []).append(mean)
    if len({at for *_, at in found}) < FEWEST_BINS:
        return []
    lines = []
    for (model, label, at), means in found.items():
        kld = mean_interval(np.array(means))
        ends = {"kld_mean": kld.value, "kld_low": kld.low, "kld_high": kld.high}
        lines.append({"model": model, "label": label, "first": 2**at, "prompts": len(means), **ends})
    return sorted(lines, key=lambda line: line["first"])


def _by_bin(prompt_tokens: int, kld: Any, prompt_at: Any, prompt_kld: Any) -> list[tuple[int, float]]:
    """(log2 of a bin's first position, mean KLD of one prompt there)."""
    values = np.asarray(kld, dtype=float)
    positions = prompt_tokens + np.arange(len(values))
    if prompt_at is not None:
        positions = np.concatenate([np.asarray(prompt_at), positions])
        values = np.concatenate([np.asarray(prompt_kld, dtype=float), values])
    bins = np.floor(np.log2(np.maximum(positions, 1))).astype(int)
    return [(int(at), float(values[bins == at].mean())) for at in np.unique(bins)]
