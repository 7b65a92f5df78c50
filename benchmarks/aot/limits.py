"""What a count of instructions says of speed: the most of a GPU's bandwidth that a kernel can take, derived and not
measured.

A processor issues 4 instructions of 32 lanes a cycle; real kernels reach a part of that, and a copy a part of a
memory's peak. Where the instructions for a byte take longer than the byte, they set the pace.
"""

from typing import NamedTuple


class Chip(NamedTuple):
    """Processors, their clock under load in Hz, and bytes a second of the memory at most; from the makers' sheets."""

    title: str
    capability: int
    processors: int
    clock: float
    memory: float


CHIPS = (
    Chip("A100", 80, 108, 1.41e9, 2.039e12),
    Chip("H100", 90, 132, 1.755e9, 3.35e12),
    Chip("H200", 90, 132, 1.755e9, 4.8e12),
)
LANES = 4 * 32
ISSUED = 0.65  # of the issue slots
COPIED = 0.87  # of the memory's peak, by a copy
ATTENDED = 0.85  # of a copy's bandwidth, by the best fp16 attention
FP16 = 2  # bytes an element
ASSUMED = {
    "chips": {chip.title: chip._asdict() for chip in CHIPS},
    "issued": ISSUED,
    "copied": COPIED,
    "attended": ATTENDED,
}


def share(instructions: float, nbytes: float, capability: int) -> dict[str, float]:
    """Of a copy's bandwidth, on each chip of the capability: what the instructions an element let through."""
    return {
        chip.title: _rounded(min(1.0, nbytes * _lanes_a_byte(chip) * ISSUED / instructions))
        for chip in CHIPS
        if chip.capability == capability
    }


def gain(instructions: float, nbytes: float, capability: int) -> dict[str, float]:
    """How many times as fast as the best fp16 attention reads as many elements; below 1 is slower."""
    found = share(instructions, nbytes, capability)
    return {title: _rounded(part / ATTENDED * FP16 / nbytes) for title, part in found.items()}


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")


def _lanes_a_byte(chip: Chip) -> float:
    """Instructions of a lane in the time of a byte's copy."""
    return chip.processors * LANES * chip.clock / (chip.memory * COPIED)
