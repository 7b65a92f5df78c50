"""The reference table as Markdown: a table a model and setting, whose figures have intervals, and every cell's run."""

from typing import Any

from kvq_core.claims.tables import markdown_rows
from kvq_core.studies.result import StudyResult
from kvq_core.studies.table import SETTINGS, setting

_HEAD = ("Lane", "Bits", "Mean KLD", "95 % interval", "Worst prompt", "Flips", "Kept drafts")


def table_markdown(result: StudyResult, page: str) -> str:
    """The whole table; ``page``: where links open runs."""
    summary = result.summary()
    parts = [f"Study `{result.id}`: {summary['cells']['done']} of {summary['cells']['total']} cells."]
    parts += summary["notes"]
    titles = list(dict.fromkeys(line["model"] for line in summary["lanes"]))
    for model in titles:
        lines = [line for line in summary["lanes"] if line["model"] == model and line["kld_mean"] is not None]
        parts.append(f"### {model}")
        for title in dict.fromkeys(SETTINGS.values()):
            own = [line for line in lines if setting(line["label"])[0] == title]
            parts += [f"#### {title[0].upper()}{title[1:]}", _lines([_HEAD, *map(_row, own)])] if own else []
        parts += ["#### Every cell", _prompts(result, model, page)]
    return "\n\n".join(parts) + "\n"


def _row(line: dict[str, Any]) -> tuple[str, ...]:
    ends = "-" if line["kld_low"] is None else f"{line['kld_low']:.3g} to {line['kld_high']:.3g}"
    bits = (line["key_bits"] + line["value_bits"]) / 2
    drafts = "-" if line["acceptance"] is None else f"{line['acceptance']:.1%}"
    name, mean = setting(line["label"])[1], f"{line['kld_mean']:.3g}"
    worst = f"{line['worst_kld']:.3g} ({line['worst_prompt']})"
    return name, f"{bits:.2f}", mean, ends, worst, f"{line['flips']:.1%}", drafts


def _prompts(result: StudyResult, model: str, page: str) -> str:
    """Lanes x prompts: the mean KLD of each; a prompt's column opens its comparison."""
    found = result.table[result.table["model"] == model]
    opens = found.drop_duplicates("prompt").set_index("prompt")["run"]
    klds = found.pivot(index="lane", columns="prompt", values="kld_mean").reindex(found["lane"].unique())
    head = ("Lane", *(f"[{prompt}]({page}/?run={run})" for prompt, run in opens.items()))
    cells = (
        (lane, *(_figure(row[prompt], page, opens[prompt]) for prompt in opens.index)) for lane, row in klds.iterrows()
    )
    return _lines([head, *cells])


def _figure(kld: float, page: str, run: str) -> str:
    return f"[{kld:.2g}]({page}/?run={run})" if kld == kld else "-"


def _lines(rows: list[tuple[str, ...]]) -> str:
    return "\n".join(markdown_rows(rows))


def runs(result: StudyResult) -> list[dict[str, Any]]:
    """Model, prompt and run of every cell that is done."""
    found = result.table.drop_duplicates(["model", "prompt"])[["model", "prompt", "group", "run"]]
    rows: list[dict[str, Any]] = found.to_dict("records")
    return rows
