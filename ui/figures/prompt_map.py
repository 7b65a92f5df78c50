"""A study's prompts against its lanes: mean KLD of every cell on one scale, the worst prompt on top."""

import math

import numpy as np
import plotly.graph_objects as go

from kvq_core.studies.result import StudyResult
from ui.figures.base import bar, canvas, label_figure
from ui.html.colors import SEQUENTIAL
from ui.html.escape import plot_safe, shorten
from ui.html.numbers import significant

MOST = 60  # rows; the files hold all of them
WRITTEN = 8  # lanes up to which cells carry their number
NAME = 22  # characters of a prompt's id


def worst_first(result: StudyResult, model: str) -> list[str]:
    """Ids of a model's prompts, the one with the largest KLD of any lane first."""
    rows = result.table[result.table["model"] == model]
    worst = rows.groupby("prompt", sort=False)["kld_mean"].max()
    return [str(prompt) for prompt in worst.sort_values(ascending=False, kind="stable").index]


def prompt_map(result: StudyResult, model: str) -> go.Figure | None:
    """``pick`` gives a row's number, which is its place in ``worst_first``."""
    rows = result.table[result.table["model"] == model]
    prompts, lanes = worst_first(result, model)[:MOST], list(rows["lane"].unique())
    table = rows.pivot(index="prompt", columns="lane", values="kld_mean").reindex(index=prompts, columns=lanes)
    values = table.to_numpy(dtype=float)
    known = values[values > 0]
    if not known.size:
        return None
    low, high = math.log10(known.min()), math.log10(known.max())
    codes = np.log10(np.where(values > 0, values, np.nan))
    texts = [[_text(value) for value in row] for row in values]
    figure = canvas(88 + 26 * len(prompts), margin={"l": 12, "r": 12, "t": 64, "b": 12})
    figure.add_heatmap(
        x=list(range(len(lanes))),
        y=list(range(len(prompts))),
        z=codes.astype(np.float32),
        text=texts,
        texttemplate="%{text}" if len(lanes) <= WRITTEN else None,
        customdata=[[f"{_name(prompt)}, {plot_safe(lane)}" for lane in lanes] for prompt in prompts],
        hovertemplate="%{customdata}: mean KLD %{text} nats<extra></extra>",
        coloraxis="coloraxis",
        xgap=2,
        ygap=2,
    )
    ticks = sorted({math.floor(low), *range(math.ceil(low), math.floor(high) + 1)})
    axis = {"tickvals": ticks, "ticktext": [f"{10.0**tick:g}" for tick in ticks]}
    scale = {"colorscale": list(SEQUENTIAL), "cmin": low, "cmax": max(high, low + 0.1)}
    figure.update_layout(coloraxis={**scale, "colorbar": {**bar("nats"), **axis}})
    figure.update_xaxes(
        side="top",
        tickvals=list(range(len(lanes))),
        ticktext=[plot_safe(shorten(lane, 16)) for lane in lanes],
        tickangle=-30 if len(lanes) > 3 else 0,
        showgrid=False,
        zeroline=False,
    )
    names = [f"{_name(prompt)} " for prompt in prompts]
    figure.update_yaxes(
        autorange="reversed",
        tickvals=list(range(len(prompts))),
        ticktext=names,
        automargin=True,
        showgrid=False,
        zeroline=False,
    )
    return label_figure(figure, "Heatmap of mean KLD, prompts by lanes, the worst first", {"prompt": "y"})


def _name(prompt: str) -> str:
    return plot_safe(shorten(prompt, NAME))


def _text(value: float) -> str:
    return "" if math.isnan(value) else significant(value, 2)
