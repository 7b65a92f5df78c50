"""A study's prompts against its lanes: mean KLD of every cell on one scale, the worst prompt on top."""

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvq_core.studies.result import StudyResult
from ui.figures.base import bar, canvas, label_figure
from ui.html.colors import SEQUENTIAL
from ui.html.escape import plot_safe, shorten
from ui.html.numbers import significant
from ui.html.tokens import TOKENS

MOST = 60  # rows; the files hold all of them
LEVEL = 3  # lanes up to which their names need no slant
SLANTED = 24  # lanes up to which their names have room
WRITTEN = 8  # lanes up to which cells carry their number
DARK = 0.62  # of the scale, from which white is read better
NAME = 20  # characters of a prompt's name


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
    names = [plot_safe(name) for name in prompt_names(result, prompts, NAME)]
    texts = [[_text(value) for value in row] for row in values]
    top = 34 if len(lanes) <= LEVEL else 92 if len(lanes) <= SLANTED else 12
    figure = canvas(top + 24 + 26 * len(prompts), margin={"l": 12, "r": 12, "t": top, "b": 12})
    figure.add_heatmap(
        x=list(range(len(lanes))),
        y=list(range(len(prompts))),
        z=codes.astype(np.float32),
        text=texts,
        customdata=[[f"{name}, {plot_safe(lane)}" for lane in lanes] for name in names],
        hovertemplate="%{customdata}: mean KLD %{text} nats<extra></extra>",
        coloraxis="coloraxis",
        xgap=2,
        ygap=2,
    )
    if len(lanes) <= WRITTEN:
        _write(figure, texts, (codes - low) / max(high - low, 0.1))
    figure.update_layout(coloraxis=_scale(low, high))
    _name(figure, lanes, names)
    return label_figure(figure, "Heatmap of mean KLD, prompts by lanes, the worst first", {"prompt": "y"})


def _name(figure: go.Figure, lanes: list[str], names: list[str]) -> None:
    """Lanes above their columns, where there is room, and prompts beside their rows."""
    figure.update_xaxes(
        side="top",
        tickvals=list(range(len(lanes))),
        ticktext=[plot_safe(shorten(lane, 16)) for lane in lanes],
        tickangle=-45 if len(lanes) > LEVEL else 0,
        showticklabels=len(lanes) <= SLANTED,
        showgrid=False,
        zeroline=False,
    )
    figure.update_yaxes(
        autorange="reversed",
        tickvals=list(range(len(names))),
        ticktext=[f"{name} " for name in names],
        automargin=True,
        showgrid=False,
        zeroline=False,
    )


def _scale(low: float, high: float) -> dict[str, Any]:
    """Colours between two powers of ten, whose ticks are told as what they are of."""
    ticks = sorted({math.floor(low), *range(math.ceil(low), math.floor(high) + 1)})
    axis = {"tickvals": ticks, "ticktext": [f"{10.0**tick:g}" for tick in ticks]}
    scale = {"colorscale": list(SEQUENTIAL), "cmin": low, "cmax": max(high, low + 0.1)}
    return {**scale, "colorbar": {**bar("nats"), **axis}}


def prompt_names(result: StudyResult, ids: list[str], limit: int) -> list[str]:
    """Prompts' ids; of those that are numbers alone with what is asked behind them."""
    asked = {prompt.id: prompt.prompt for prompt in result.plan.prompts}
    return [shorten(f"{id}: {asked.get(id, '')}" if id.isdigit() and asked.get(id) else id, limit) for id in ids]


def _write(figure: go.Figure, texts: list[list[str]], shares: np.ndarray) -> None:
    """The numbers on the cells, each in the ink that can be read there."""
    rows, columns = shares.shape
    figure.add_scatter(
        x=[column for _ in range(rows) for column in range(columns)],
        y=[row for row in range(rows) for _ in range(columns)],
        text=[text for row in texts for text in row],
        mode="text",
        textfont={"size": 12, "color": [TOKENS.light["card" if share > DARK else "ink"] for share in shares.ravel()]},
        hoverinfo="skip",
        showlegend=False,
    )


def _text(value: float) -> str:
    return "" if math.isnan(value) else significant(value, 2)
