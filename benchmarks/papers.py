"""The part of docs/reproduce.md that is written from presets/tasks/papers.toml, each table's command and lanes, and
that of docs/claims.md from presets/tasks/coverage.toml: what became of every table and figure of the papers."""

import json
import re
import tomllib
from typing import Any

from benchmarks.measured import HERE, table
from kvq_core.claims import papers as claimed

FILE = HERE.parent / "presets" / "tasks" / "papers.toml"
COVERAGE = FILE.with_name("coverage.toml")
NOT_RUN = "scores: [lm-eval](reproduce.md#commands), *not run here*"


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


def coverage() -> dict[str, Any]:
    """By paper, how many tables and figures it has, and what became of each."""
    return tomllib.loads(COVERAGE.read_text(encoding="utf-8"))


def coverage_part() -> str:
    """A row a table or figure: its claims here, a preset, and the command that measures it or the reason why not."""
    rows = [
        [claimed()[name].title, where, *_covered(name, where, row)]
        for name, paper in coverage().items()
        for where, row in paper["rows"].items()
    ]
    return table("Paper | Table or figure | Claims here | Preset | Command, or why not", *rows)


def _covered(name: str, where: str, row: dict[str, Any]) -> list[str]:
    owner = claimed()[name]
    measured, timed = ({c.id: c.sentence for c in some} for some in (owner.claims, owner.latency))
    ids = row.get("claims", [])
    commands = [f"`python -m kvq_core claims --paper {name}`"] if any(each in measured for each in ids) else []
    commands += ["`make bench-gpu`"] if any(each in timed for each in ids) else []
    commands += [NOT_RUN] if where in scored(owner.title) else []
    preset = f"`{row['preset']}`" if "preset" in row else ""
    sentences = "<br>".join((measured | timed)[each] for each in ids)
    return [sentences, preset, "<br>".join([*commands, *([f"{row['why']}."] if "why" in row else [])])]


def scored(title: str) -> set[str]:
    """Tables and figures of a paper that docs/reproduce.md has a command for."""
    found = set()
    for where in (each["where"] for each in papers()["tables"] if each["paper"] == title):
        kind = "Figure" if where.startswith("Figure") else "Table"
        found |= {f"{kind} {number}" for number in re.findall(r"\d+", where)}
    return found
