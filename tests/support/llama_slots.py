"""What llama.cpp writes of a slot (llama_state_seq_save_file, version 4 of the format)."""

import struct
from pathlib import Path

import gguf
import numpy as np

MAGIC = 0x67677371  # "ggsq"


class _Words:
    """Little-endian words of a file, one after the other."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def one(self, kind: str = "I") -> int:
        found = struct.unpack_from(f"<{kind}", self.data, self.at)[0]
        self.at += struct.calcsize(kind)
        return int(found)

    def rows(self, count: int, size: int) -> np.ndarray:
        self.at += count * size
        return np.frombuffer(self.data[self.at - count * size : self.at], np.uint8).reshape(count, size)


def stored(file: Path) -> tuple[tuple[int, int], np.ndarray, np.ndarray]:
    """Channels that keys and values were rotated in, and each layer's keys and values as attention reads them, rotated
    still, (layers, tokens, channels) float32: of a cache whose values are not transposed, as flash attention has it."""
    words = _Words(file.read_bytes())
    assert (words.one(), words.one()) == (MAGIC, 4)
    words.rows(1, 4 * words.one())  # the tokens
    assert words.one() == 1, "streams"
    cells = words.one()
    for position in range(cells):
        assert words.one() == position
        words.rows(1, 4 * words.one())  # the sequences it is in
    assert words.one() == 0, "values are transposed"
    layers = words.one()
    turns = words.one(), words.one()
    keys, values = (np.stack([_layer(words, cells) for _ in range(layers)]) for _ in "kv")
    assert words.at == len(words.data)
    return turns, keys, values


def _layer(words: _Words, cells: int) -> np.ndarray:
    kind = gguf.GGMLQuantizationType(words.one())
    return np.asarray(gguf.dequantize(words.rows(cells, words.one("Q")), kind))
