"""Shares of right answers as they are told: with Wilson's interval, and of needles as a map by depth and length."""

from collections.abc import Iterable, Mapping

RIGHT, PLACE = ".right", ".depth_"  # of a lane: all its answers, and those at one depth in percent


def share_words(share: float, answers: int, ends: bool = True) -> str:
    """``14 of 15 (70% to 99%)``: right ones of ``answers``, with the ends of their 95 % interval."""
    from kvq_core.studies.intervals import share_interval  # a second's import that most commands never need

    hits = round(share * answers)
    found = share_interval(hits, answers) if ends else None
    return f"{hits} of {answers}" + (f" ({found.low:.0%} to {found.high:.0%})" if found else "")


def recall_maps(cases: Mapping[str, Mapping[str, float]]) -> dict[str, list[list[str]]]:
    """By lane, a table of shares of needles found: its head, the cases, and a row a depth. Nothing where no number is
    of a depth."""
    names = [name for name in next(iter(cases.values()), {}) if PLACE in name]
    maps: dict[str, list[list[str]]] = {}
    for name in names:
        lane, _, depth = name.partition(PLACE)
        rows = maps.setdefault(lane, [["Depth", *cases]])
        rows.append([f"{depth} %", *(f"{numbers[name]:.0%}" for numbers in cases.values())])
    return maps


def shown(names: Iterable[str]) -> list[str]:
    """Names that stand in a line; those of a map's places stand in the map."""
    return [name for name in names if PLACE not in name]
