"""A verification as people and CI read it: lines for a terminal, Markdown, JUnit."""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

from kvq_core.servers.verification import Report, status


def lines(report: Report) -> list[str]:
    """The verdict first, then its figures, then what to know of them."""
    kld, seconds = report["kld"], report["seconds"]
    between = "" if kld["low"] is None else f" ({kld['low']:.2g} to {kld['high']:.2g})"
    expected = "not known" if report["predicted"] is None else f"{report['predicted']:.2g}"
    found = [f"{report['verdict']}: {report['why']}"]
    found += [f"  suspect {said}" for said in report["suspects"]]
    if report["beyond_tolerance"]:
        found.append(f"beyond the tolerance of {report['tolerance']:g} nats")
    found.append(
        f"mean KLD {kld['mean']:.2g} nats{between}, predicted {expected}, floor {report['floor']:.2g}; flips "
        f"{report['flips']} of {report['n_scored']}, {report['near_tie_flips']} of them near ties"
    )
    told = "" if seconds["servers"] is None else f", of which the servers say {seconds['servers']:.1f} s are theirs"
    found.append(f"{seconds['wall']:.1f} s{told}. Kept as {report['id']}.")
    return found + report["notes"]


def text(report: Report) -> str:
    worst = [
        f"  prompt {one['prompt']}, token {one['position']}: {one['kld']:.2g} nats after {one['before']!r}: "
        f"{one['baseline']!r} became {one['server']!r}"
        for one in report["worst"]
    ]
    return "\n".join([*lines(report), *(["Worst tokens:"] if worst else []), *worst])


def markdown(report: Report) -> str:
    rows = [
        f"| {_cell(each['id'])} | {each['kld']:.2g} | {_number(each['predicted'])} | {each['floor']:.2g} | "
        f"{each['flips']} of {each['n_scored']} |"
        for each in report["prompts"]
    ]
    worst = [
        f"| {_cell(one['prompt'])} | {one['position']} | {one['kld']:.2g} | {_cell(one['before'])} | "
        f"{_cell(one['baseline'])} | {_cell(one['server'])} |"
        for one in report["worst"]
    ]
    first, *rest = lines(report)
    parts = [
        f"# {_cell(first)}",
        "",
        *(f"- {_cell(line.strip())}" for line in rest),
        "",
        "| Prompt | Delivered | Predicted | Floor | Flips |",
        "|---|---|---|---|---|",
        *rows,
        "",
        "| Prompt | Token | KLD | After | Baseline | Server |",
        "|---|---|---|---|---|---|",
        *worst,
        "",
    ]
    return "\n".join(parts)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _cell(text: object) -> str:
    """Anybody's text as Markdown that holds no markup and no table's end."""
    plain = "".join(c if c.isprintable() else " " for c in str(text))
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|!&" else c for c in plain)


def junit(report: Report) -> str:
    """One case, of the verdict: failed where it is worse or nothing, an error where it cannot be told."""
    code = status(report)
    suite = ET.Element(
        "testsuite", name="kvq verify", tests="1", failures=str(int(code == 1)), errors=str(int(code == 3))
    )
    name = f"{report['format'] or 'cache'} of {report['server']['model']}"
    case = ET.SubElement(
        suite, "testcase", classname="kvq.verify", name=_xml(name), time=f"{report['seconds']['wall']:.3f}"
    )
    if code:
        fault = ET.SubElement(case, "failure" if code == 1 else "error", message=_xml(report["why"]))
        fault.text = _xml("\n".join(lines(report)))
    ET.SubElement(case, "system-out").text = _xml(text(report))
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    """Without what XML cannot hold."""
    return "".join(c if c in "\t\n" or (c.isprintable() and not 0xD800 <= ord(c) < 0xE000) else " " for c in text)


EXPORTS: dict[str, Callable[[Report], str]] = {".md": markdown, ".xml": junit}


def write(report: Report, file: Path) -> None:
    """By the file's ending. Raises OSError."""
    from kvq_core.machine import files

    files.write(file, EXPORTS[file.suffix](report).encode(errors="replace"))
