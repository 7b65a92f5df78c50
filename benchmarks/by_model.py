"""Parts of the documents that show what was measured on several models side by side; ``readme.py`` writes them."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.by_format import of_family
from benchmarks.measured import figures, table
from kvq_core.claims.board import Board, shipped_boards
from kvq_core.claims.latency import stored_latency
from kvq_core.claims.side_by_side import JUDGED, of_models, short_title
from kvq_core.claims.tables import maps_tables, markdown_table, summary_table
from kvq_core.methods import Method, methods

Measured = dict[str, Any]


def claims_part() -> str:
    """A line a claim; the board has all the numbers."""
    return summary_table(shipped_boards())


def names_part() -> str:
    """For the README: every method by its name, those of papers first, each with its paper."""
    found = sorted(methods().values(), key=lambda cls: cls.title.lower())
    papers = [f"[{cls.title}]({cls.paper})" for cls in found if cls.paper]
    others = [cls.title for cls in found if not cls.paper]
    return f"From papers: {', '.join(papers)}.\n\nOf engines, and plain: {', '.join(others)}."


def board_part() -> str:
    """The boards that ship; those measured on this machine are no part of the documents."""
    return markdown_table(shipped_boards())


def maps_part() -> str:
    """What needles were found, by depth and length."""
    return maps_tables(shipped_boards())


def methods_part() -> str:
    measured = list((figures("methods") or {}).values())
    setting, boards = measured[0], of_models(shipped_boards())
    shown = [(name, cls) for name, cls in methods().items() if of_family(name, cls)]
    baselines_first = sorted(shown, key=lambda item: (item[1].paper is not None, item[0]))
    rows = [_method(name, cls, [found["methods"].get(name) for found in measured]) for name, cls in baselines_first]
    held = [_claims(cls, boards) for _, cls in baselines_first]
    columns = " | ".join(f"{short_title(found['model'])}: KLD, flips" for found in measured)
    return (
        table(
            f"Method | What it does | Settings | Bits K / V | {columns} | Its paper's claims that hold",
            *([*row, claims] for row, claims in zip(rows, held, strict=True)),
        )
        + f"\n\n{' and '.join(found['model'] for found in measured)} on a CPU in float32, default knobs, "
        f"{len(setting['texts'])} texts: mean KLD in nats (lowest to highest text), and flips. A cache of "
        f"{setting['prompt_tokens']} tokens answers for the next {setting['later_tokens']}; bits are those of the "
        "whole cache at the end, full-precision windows included. Bits and claims are in the order of the models. "
        f"Of a family of formats one stands for all; {len(methods()) - len(shown)} more that engines ship, and papers' "
        "baselines, with bits at head_dim 64 and 128, windows, rotation, queries, flags and sources: "
        "[formats.md](formats.md)."
    )


def _method(name: str, cls: type[Method], measured: Sequence[Measured | None]) -> list[str]:
    does = " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())
    if cls.paper:
        does = " ".join([f"{does} [{cls.title}]({cls.paper})", *stored_latency().said.get(cls.title, ())])
    summary = next((found["summary"] for found in measured if found), "")
    bits = [
        " / ".join(f"{found[kind]['mean']:.1f}" for kind in ("key_bits", "value_bits"))
        for found in measured
        if found and "kld" in found
    ]
    return [f"`{name}`", does, summary, "; ".join(dict.fromkeys(bits)), *map(_distance, measured)]


def _distance(found: Measured | None) -> str:
    """KLD and flips, or the reason why there are none."""
    if found is None:
        return "not measured"
    if "error" in found:
        return found["error"]
    mean, low, high = (f"{found['kld'][name]:.2g}" for name in ("mean", "min", "max"))
    return f"{mean} ({low} to {high}), {100 * found['flip_rate']['mean']:.1f} %"


def _claims(cls: type[Method], boards: Sequence[Board]) -> str:
    """``3 of 6; 5 of 6``, of those that could be tested: in the order of the models; nothing for methods that no claims
    are of."""
    own = [[c for c in board.claims if cls.paper and c.arxiv in cls.paper] for board in boards]
    judged = [[c.verdict for c in found if c.verdict in JUDGED] for found in own if found]
    return "; ".join(f"{found.count('holds')} of {len(found)}" for found in judged)


def main_jobs() -> Iterator[tuple[str, ...]]:
    for job in (figures("main_job") or {}).values():
        target, memory = job["targets"], job["peak_memory_gb"]
        yield (
            f"{short_title(job['model'])}: a comparison against one plain `generate()`: {job['lanes']} lanes and the "
            f"noise floor, {job['prompt_tokens']:,} prompt tokens, {job['new_tokens']} new",
            f"{job['ratio']:.1f} times ({job['comparison_s']:.1f} s against {job['generate_s']:.1f} s)",
            f"{target['ratio']:.1f} times",
        )
        yield "Its peak memory, model included", f"{memory:.1f} GB", f"{target['peak_memory_gb']:g} GB"


def conversion() -> Iterator[tuple[str, ...]]:
    """What a model costs before its first token."""
    for found in (figures("second_model") or {}).values():
        target, made = found["targets"], found["conversion"]
        yield (
            f"{short_title(found['model'])}: a GGUF file of {found['bytes'] / 1e6:,.0f} MB, checked and converted once",
            f"{made['seconds']:.0f} s, at most {made['peak_memory_gb']:.1f} GB of memory",
            f"{target['conversion_s']:g} s, {target['conversion_gb']:g} GB",
        )
        yield (
            "From its converted files to its first token, in a new process",
            f"{found['first_token_s']:.1f} s",
            f"{target['first_token_s']:g} s",
        )
