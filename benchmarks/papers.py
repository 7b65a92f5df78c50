"""The part of docs/reproduce.md that is written from presets/tasks/papers.toml: each table's command and lanes."""

import json
import tomllib
from typing import Any

from benchmarks.measured import HERE, table

FILE = HERE.parent / "presets" / "tasks" / "papers.toml"


def papers() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def papers_part() -> str:
    parts = [_table(each) for each in papers()["tables"]]
    left = [f"- {each['paper']}, {each['where']}: {each['why']}." for each in papers()["left_out"]]
    return "\n".join([*parts, "### Left out\n", *left])


def _table(each: dict[str, Any]) -> str:
    name, first = f"{each['paper']}, {each['where']}", next(iter(each["lanes"].values()))
    models = ", ".join(f"`{model}`" for model in each["models"])
    asked = json.dumps({"model": each["models"][0], **first}, ensure_ascii=False)
    lines = [
        "python -m kvq_core.lm_eval --model kvq-explorer",
        f"  --tasks {','.join(each['tasks'])}",
        *([f"  {each['arguments']}"] if "arguments" in each else []),
        f"  --model_args '{asked}'",
    ]
    rows = [(label, f"`{json.dumps(lane, ensure_ascii=False)[1:-1]}`") for label, lane in each["lanes"].items()]
    return (
        f"### {name}\n\n[arXiv:{each['arxiv']}](https://arxiv.org/abs/{each['arxiv']}) · *not run here* · {models}. "
        f"{each['note']}\n\n```sh\n" + " \\\n".join(lines) + f"\n```\n\n{table('Row | Lane', *rows)}\n"
    )
