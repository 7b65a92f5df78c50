"""What a compiled kernel does in its main loop, counted in the machine code (SASS) that nvdisasm shows."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
LABEL = re.compile(r"\s*(\.L_x_\d+):")
JUMP = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")
WIDTHS = {"8": 1, "16": 2, "64": 8, "128": 16}  # bytes of a load, by the number in its name; else 4


@dataclass(frozen=True)
class Counts:
    """Instructions of a thread, of one kind each. Loads are told by their bytes: {16: 8} are eight of 16 bytes."""

    instructions: int = 0
    copies: dict[int, int] = field(default_factory=dict)  # global to shared memory, asynchronous (LDGSTS)
    loads: dict[int, int] = field(default_factory=dict)  # global memory to registers, which waits (LDG)
    products: int = 0  # of matrices, on tensor cores
    shared: int = 0  # reads and writes of shared memory
    spills: int = 0  # reads and writes of local memory
    barriers: int = 0

    @property
    def bytes_a_load(self) -> float:
        """Mean bytes that a load or an asynchronous copy moves; 0 where there is none."""
        many = Counter(self.copies) + Counter(self.loads)
        return sum(size * count for size, count in many.items()) / (many.total() or 1)

    @property
    def asynchronous(self) -> bool:
        """Whether everything that is read of the cache is copied beside the computation, 16 bytes at once. Two loads of
        8 bytes are not of the cache: they say where the next block of keys and that of values lie."""
        waiting = {size: count for size, count in self.loads.items() if size != 8 or count > 2}
        return set(self.copies) == {16} and not waiting


def counted(assembly: str, whole: bool) -> Counts:
    """Of its main loop, between a label and the last jump back to it; or of the ``whole`` kernel, as of one that has
    no loop."""
    names = [name for name, _ in _lines(assembly)]
    begin, end = _main_loop(assembly)
    if whole or end - begin < 2:  # behind the last instruction lies a jump to itself
        begin, end = 0, len(names)
    return _counts([name for name in names[begin:end] if name != "NOP"])


def spills(assembly: str) -> int:
    """Reads and writes of local memory in all of a kernel."""
    return sum(name.split(".")[0] in ("LDL", "STL") for name, _ in _lines(assembly))


def _lines(assembly: str) -> Iterator[tuple[str, str]]:
    """Instructions by name, each with its line."""
    for line in assembly.splitlines():
        if found := INSTRUCTION.match(line):
            yield found[1], line


def _main_loop(assembly: str) -> tuple[int, int]:
    """First instruction of the loop with the most products of matrices, of several the longest, and the one after its
    last; (0, 0) where there is none."""
    labels: dict[str, int] = {}
    products, found = [0], (0, 0, 0, 0)  # products before every instruction; products, length, begin, end
    for line in assembly.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(products) - 1
        elif name := INSTRUCTION.match(line):
            products.append(products[-1] + name[1].split(".")[0].endswith("MMA"))
            jump, end = JUMP.search(line), len(products) - 1
            if jump and (begin := labels.get(jump[1])) is not None:
                found = max(found, (products[end] - products[begin], end - begin, begin, end))
    return found[2:]


def _counts(names: list[str]) -> Counts:
    kinds = Counter(name.split(".")[0] for name in names)
    return Counts(
        instructions=len(names),
        copies=_sizes(name for name in names if name.startswith("LDGSTS")),
        loads=_sizes(name for name in names if name.split(".")[0] == "LDG"),
        products=sum(count for kind, count in kinds.items() if kind.endswith("MMA")),
        shared=sum(kinds[kind] for kind in ("LDS", "STS", "LDSM", "STSM")),
        spills=kinds["LDL"] + kinds["STL"],
        barriers=kinds["BAR"],
    )


def _sizes(names: Iterator[str]) -> dict[int, int]:
    """How many of each size in bytes: LDG.E.U16 has 2."""
    found = Counter(next((WIDTHS[n] for n in re.findall(r"\.[SU]?(\d+)", name) if n in WIDTHS), 4) for name in names)
    return dict(sorted(found.items()))
