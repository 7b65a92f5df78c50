"""What a lane's cache takes, as a record holds it."""

from kvq_core.record.prompt_fields import RecordPart

FULL_PRECISION = ("sinks", "window", "untouched")  # parts of a cache that hold tokens as they are, in fp16
HOST_COPY = "host_copy"  # in ``Memory.bytes_by_part``: kept in host memory, beside the cache


class RuleMemory(RecordPart):
    """What one of a lane's several rules stores: as in Memory, of the layers and tensors it is for."""

    key_bits_quantized: float | None
    value_bits_quantized: float | None
    bytes_by_part: dict[str, int]


class Memory(RecordPart):
    """Stored bytes of the lane's cache at the end of the forced row, counted from the tensors held."""

    key_bits: float
    value_bits: float
    key_bits_quantized: float | None
    value_bits_quantized: float | None
    bytes_by_part: dict[str, int]
    shared_bytes: int  # model-wide tensors such as codebooks: beside the cache, in no ratio
    encoder_bytes: int  # state only the encoder reads (SQuat's update matrices): beside the cache, in no ratio
    kv_ratio: float  # stored bytes over those of the fp16 cache of the layers that the lane could quantize
    window_bytes: int = 0  # of layers with a window, left alone: keys and values of the window in fp16
    state_bytes: int = 0  # of layers without keys: states in fp16
    whole_ratio: float | None = None  # with windows and states, over all that the model keeps; None: there are none
    tokens: int
    by_rule: list[RuleMemory] = []  # in the rules' order where a lane has several; tensors in no rule are in none

    @property
    def declared(self) -> bool:
        """Whether bits of any tensor are what a method's author declares, not counted from what it holds."""
        return any(name.endswith("_declared") for name in self.bytes_by_part)

    @property
    def host_bytes(self) -> int:
        """What the method keeps in host memory to quantize from again, in no bits and not in ``kv_ratio``."""
        return self.bytes_by_part.get(HOST_COPY, 0)

    @property
    def stored_bytes(self) -> int:
        """The parts of the cache itself, without what is kept in host memory."""
        return sum(self.bytes_by_part.values()) - self.host_bytes

    @property
    def held_ratio(self) -> float:
        """``kv_ratio`` with what is kept in host memory: everything that has to be held for this cache."""
        return self.kv_ratio * (1 + self.host_bytes / self.stored_bytes) if self.stored_bytes else self.kv_ratio
