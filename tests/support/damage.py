"""Bytes as they arrive when something went wrong on their way."""

import random


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bits flipped, a piece cut out, a piece doubled, the end torn off, or something else altogether."""
    at, size = chance.randrange(len(data)), chance.randrange(1, 9)
    match chance.randrange(5):
        case 0:
            return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
        case 1:
            return data[:at] + data[at + size :]
        case 2:
            return data[: at + size] + data[at:]
        case 3:
            return data[:at]
    return chance.randbytes(at)
