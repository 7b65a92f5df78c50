"""The picker of a lane's method as HTML: those most often compared, a search, and the others folded by where they come
from. js/methods.js opens it, searches it and tells what was chosen."""

from kvq_core.methods import OFTEN, Method, methods, origin_of
from ui.html.escape import safe

OFTEN_COMPARED = "Often compared"
PAPERS, DEPLOYED, BASELINES, YOURS = "Papers", "Deployed", "Baselines", "Yours"  # yours: files, packages, functions


def method_picker(name: str, place: str) -> str:
    """A disclosure that names the method ``name``; a choice is told under ``place``, from the hidden input.

    Options of a listbox can neither be folded nor hold a search: these are buttons, which Tab and arrow keys reach.
    """
    groups = _groups()
    shown, folded = groups.pop(OFTEN_COMPARED), groups
    return (
        f'<div class="knob wide" id="lane-method"><input type="hidden" data-place="{place}" value="{name}">'
        f'<details class="methods"><summary id="in-lane-method"><span>Method</span><b>{safe(methods()[name].title)}</b>'
        f'</summary><div class="methods-box"><input type="search" aria-label="Search all methods" autocomplete="off" '
        f'spellcheck="false" placeholder="Search all {len(methods())} methods"><p role="status"></p>'
        f'<div class="methods-list"><div class="method-group" role="group" aria-label="{OFTEN_COMPARED}">'
        f'<p aria-hidden="true">{OFTEN_COMPARED}</p>{_buttons(shown, name)}</div>'
        f"{''.join(_folded(group, some, name) for group, some in folded.items())}</div></div></details></div>"
    )


def first_line(cls: type[Method]) -> str:
    """What a method does: the first paragraph of its docstring, in one line."""
    return " ".join((cls.__doc__ or "").strip().partition("\n\n")[0].split())


def _groups() -> dict[str, list[str]]:
    """Every method once, by the group it is offered in; groups that hold none are left out."""
    groups: dict[str, list[str]] = {OFTEN_COMPARED: [name for name in OFTEN if name in methods()]}
    groups |= {group: [] for group in (PAPERS, DEPLOYED, BASELINES, YOURS)}
    for name, cls in methods().items():
        if name not in OFTEN:
            groups[_group(cls)].append(name)
    return {group: some for group, some in groups.items() if some or group == OFTEN_COMPARED}


def _group(cls: type[Method]) -> str:
    if origin_of(cls) is not None:
        return YOURS
    room = cls.__module__.split(".")[2]
    if room == "formats":
        return DEPLOYED
    return BASELINES if room == "baselines" or cls.paper is None else PAPERS


def _folded(group: str, names: list[str], chosen: str) -> str:
    return (
        f'<details class="method-group"><summary>{group} <small>{len(names)}</small></summary>'
        f"{_buttons(names, chosen)}</details>"
    )


def _buttons(names: list[str], chosen: str) -> str:
    return "".join(_button(name, chosen) for name in names)


def _button(name: str, chosen: str) -> str:
    cls, current = methods()[name], ' aria-current="true"' * (name == chosen)
    return (
        f'<button type="button" data-method="{name}"{current}><b>{safe(cls.title)}</b> '
        f"<small>{safe(first_line(cls))}</small></button>"
    )
