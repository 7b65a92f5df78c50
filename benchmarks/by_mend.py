"""What mending files gains, of what benchmarks/mend.py wrote, as docs/mend.md has it."""

from collections.abc import Iterator
from typing import Any

from benchmarks.measured import figures, table

HEAD = (
    "File | Cache | Context | Where | Prompts | Original | Mended | Times less | Full precision | Flips of | "
    "Original | Mended | At the context | Times less | Full precision"
)


def mend_part() -> str:
    """A row for every file, format and context, here and in llama.cpp."""
    found = figures("mend") or {}
    rows = [row for told in found.values() for row in _rows(told)]
    if not rows:
        return "Nothing was measured yet: `python benchmarks/mend.py` does."
    said = [
        f"`{told['file']}` for {told['format']}, context {_asked(told)}: {_changed(told)}" for told in found.values()
    ]
    return "\n".join([table(HEAD, *rows), "", *(f"- {each}" for each in said)])


def mended_line() -> str:
    """The file that llama.cpp gains most from, in a sentence for the README; empty where none was run there."""
    found = [told for told in (figures("mend") or {}).values() if told["written"] and "engine" in told]
    if not found:
        return ""
    best = max(found, key=lambda told: told["engine"]["kld"]["before"] / told["engine"]["kld"]["after"])
    own = best["engine"]
    before, after = (f"{own['kld'][name]:.2g}" for name in ("before", "after"))
    changed, types = f"{best['changed_bytes'] / 1e6:.1f} MB", best["format"].partition("/")[0]
    return (
        f"**A file can be [mended](docs/mend.md).** With {changed} of `{best['file']}` changed, its mean KLD under "
        f"llama.cpp's own {types} cache falls from {before} to {after} nats ({own['prompts']} prompts, measured in "
        f"llama.cpp). The file is for contexts up to {best['context']:,} tokens. It gained most of the files measured"
        f"{_unwritten()}."
    )


def _unwritten() -> str:
    """Files for which mending writes nothing in any format, named beside the one that gains most."""
    found = list((figures("mend") or {}).values())
    none = {told["file"] for told in found} - {told["file"] for told in found if told["written"]}
    return "".join(f"; `{file}` gained nothing" for file in sorted(none))


def _asked(told: dict[str, Any]) -> str:
    """The context, and whether biases alone were changed: two files of one context differ by that."""
    return f"{told['context']:,}" + (", biases alone" if told["biases"] and not told["folded"] else "")


def _changed(told: dict[str, Any]) -> str:
    if not told["written"]:
        return f"no file was written: {told['why_not']}."
    pairs = sum(len(each["pairs"]) + len(each.get("half", [])) for each in told["biases"])
    gains = [each["gain"] for each in told["folded"]]
    best = f", at best {max(gains):.3g} times less variance of score errors in a layer" if gains else ""
    return (
        f"biases of {pairs} pairs left out in {len(told['biases'])} heads, scales folded in {len(gains)} layers{best}; "
        f"{told['changed_bytes']:,} bytes are other ones."
    )


def _rows(told: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    if told["kld"] is None:
        return
    far = told["at_context"]
    at = (
        f"{far['kld']['before']:.3g} to {far['kld']['after']:.3g}",
        f"{far['kld']['before'] / far['kld']['after']:.3g}",
        f"{far['full_precision_kld']:.2g}",
    )
    yield (told["file"], told["format"], _asked(told), "here", *_figures(told), *at)
    if "engine" in told:
        own = told["engine"]
        yield (told["file"], told["format"], _asked(told), "llama.cpp", *_figures(own), "", "", "")


def _figures(of: dict[str, Any]) -> tuple[str, ...]:
    kld, flips = of["kld"], of["flips"]
    both = (f"{kld[name]:.3g} ({kld[f'{name}_low']:.2g} to {kld[f'{name}_high']:.2g})" for name in ("before", "after"))
    ratio, full = f"{kld['before'] / kld['after']:.3g}", f"{of['full_precision_kld']:.2g}"
    return (f"{of['prompts']}", *both, ratio, full, f"{of['positions']}", f"{flips['before']}", f"{flips['after']}")
