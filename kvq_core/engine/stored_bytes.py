"""Stored bytes of a lane's cache, counted from the tensors it holds."""

from dataclasses import replace

from kvq_core.engine.cache import KINDS, LaneCache, Part
from kvq_core.methods import ModelShape
from kvq_core.methods.eviction import Evicting
from kvq_core.record.memory import FULL_PRECISION, HOST_COPY, Memory, RuleMemory

FP16 = 2  # bytes


def measure(cache: LaneCache, shape: ModelShape) -> Memory:
    """Bytes by part, effective bits per element of keys and of values, ratio to an fp16 cache of the same tokens: of
    the layers that the lane could quantize. What the others hold, windows and states in fp16, is beside that; the ratio
    of everything is of what a cache needs, which drops what windows have left behind."""
    own = [part for part in cache.parts if not _left_alone(cache, part, shape)]
    parts = _by_name(own)
    stored = sum(parts.values())
    if host := sum(part.stream.host_bytes for part in own):
        parts[HOST_COPY] = host  # in host memory, beside the cache: in no bits and no ratio
    tokens = max(part.stream.tokens for part in cache.parts)
    elements = {
        kind: tokens * sum(_elements(part, cache, shape) for part in own if part.kind == kind) for kind in KINDS
    }
    key, value = (_bits(parts, kind, elements[kind]) for kind in KINDS)
    beside = window_bytes(cache, shape), FP16 * sum(kind.conv + kind.recurrent for kind in shape.kinds)
    full, past = FP16 * sum(elements.values()), _past_windows(own, cache, shape)
    others = sum(beside)
    return Memory(
        key_bits=key,
        value_bits=value,
        key_bits_quantized=_quantized_bits(own, "key", cache, shape),
        value_bits_quantized=_quantized_bits(own, "value", cache, shape),
        bytes_by_part=parts,
        shared_bytes=cache.model_bytes,
        encoder_bytes=cache.encoder_bytes,
        kv_ratio=stored / full if full else 1.0,
        window_bytes=beside[0],
        state_bytes=beside[1],
        whole_ratio=(stored - past[0] + others) / (full - past[1] + others) if shape.windowed or others else None,
        tokens=tokens,
        by_rule=_by_rule(cache, shape),
    )


def _by_rule(cache: LaneCache, shape: ModelShape) -> list[RuleMemory]:
    """What each of a lane's several rules stores; nothing where it has one."""
    found = []
    for number in range(cache.rules) if cache.rules > 1 else ():
        own = [replace(part, stream=stream) for part in cache.parts for stream in part.stored_by(number)]
        keys, values = (_quantized_bits(own, kind, cache, shape) for kind in KINDS)
        found.append(RuleMemory(key_bits_quantized=keys, value_bits_quantized=values, bytes_by_part=_by_name(own)))
    return found


def _left_alone(cache: LaneCache, part: Part, shape: ModelShape) -> bool:
    """Whether a part is of layers with a window that no rule of the lane is for."""
    return not part.rules and set(_layers(cache, part)) <= set(shape.windowed)


def _layers(cache: LaneCache, part: Part) -> list[int]:
    """Of the model, that a part holds."""
    return [cache.layers[part.group][i] for i in part.layers.tolist()]


def _elements(part: Part, cache: LaneCache, shape: ModelShape) -> int:
    """Of one token, in all layers of a part."""
    kinds = [shape.kinds[layer] for layer in _layers(cache, part)]
    return sum(kind.kv_heads * (kind.key_dim if part.kind == "key" else kind.value_dim) for kind in kinds)


def window_bytes(cache: LaneCache, shape: ModelShape) -> int:
    """What layers with a window hold that are left alone: keys and values of their window alone, in fp16."""
    left = [part for part in cache.parts if _left_alone(cache, part, shape)]
    held = ((part, shape.kinds[layer]) for part in left for layer in _layers(cache, part))
    dims = ((p.stream.tokens, kind, kind.key_dim if p.kind == "key" else kind.value_dim) for p, kind in held)
    return FP16 * sum(kind.tokens(tokens) * kind.kv_heads * dim for tokens, kind, dim in dims)


def _past_windows(own: list[Part], cache: LaneCache, shape: ModelShape) -> tuple[float, int]:
    """Bytes that parts store of tokens which a layer's window has left behind, and what these take in fp16: tokens are
    all held here, and the oldest are the quantized ones."""
    stored, full = 0.0, 0
    for part in own:
        layers, tokens, sizes = _layers(cache, part), part.stream.tokens, part.stream.nbytes()
        packed = part.stream.packed_tokens
        of_packed = sum(size for name, size in sizes.items() if name not in FULL_PRECISION)
        of_rest = sum(sizes.values()) - of_packed
        for kind in map(shape.kinds.__getitem__, layers):
            dim, gone = kind.key_dim if part.kind == "key" else kind.value_dim, tokens - kind.tokens(tokens)
            full += FP16 * gone * kind.kv_heads * dim
            first = min(gone, packed)
            rest = of_rest * (gone - first) / (tokens - packed) if gone > first else 0.0
            stored += ((of_packed * first / packed if packed else 0.0) + rest) / len(layers)
    return stored, full


def whole_note(memory: Memory) -> str | None:
    """The size of everything that the model keeps; None where its layers keep all tokens, and nothing else."""
    if memory.whole_ratio is None:
        return None
    held = (("windows", memory.window_bytes), ("states", memory.state_bytes))
    beside = " and ".join(f"{name} ({size / 1e6:.3g} MB)" for name, size in held if size)
    counted = f"with {beside} as they are" if beside else "with windows at the tokens that they need"
    return f"{counted}, the whole cache is {memory.whole_ratio:.1%} of its fp16 size"


def _by_name(parts: list[Part]) -> dict[str, int]:
    """Bytes of some parts of a cache, by tensor and what they are."""
    found: dict[str, int] = {}
    for part in parts:
        for name, size in part.stream.nbytes().items():
            found[f"{part.kind}_{name}"] = found.get(f"{part.kind}_{name}", 0) + size
    return found


def host_note(memory: Memory) -> str | None:
    """The size of a cache with the copy its method keeps in host memory, beside the size without it."""
    if not memory.host_bytes:
        return None
    return (
        f"the host copy takes {memory.host_bytes / 1e6:.3g} MB more: {memory.held_ratio:.1%} of the fp16 cache with "
        f"it, {memory.kv_ratio:.1%} without"
    )


def kept_note(cache: LaneCache, memory: Memory, shape: ModelShape) -> str | None:
    """What the cache takes where tokens that are dropped really go, of the layers that the lane could quantize; None of
    one that drops none."""
    shares = [select.share(at) for select, at in cache.selects.values() if isinstance(select, Evicting)]
    if not shares:
        return None
    own = [part for part in cache.parts if not _left_alone(cache, part, shape)]
    layers = len({layer for part in own for layer in _layers(cache, part)})
    kept = (sum(shares) + layers - len(shares)) / layers
    return (
        f"{kept:.1%} of the {memory.tokens} tokens are still read at the end: {kept * memory.kv_ratio:.1%} of the fp16 "
        f"cache in an engine that frees what is dropped, {memory.kv_ratio:.1%} as it is stored here"
    )


def _bits(parts: dict[str, int], kind: str, elements: int) -> float:
    own = sum(size for name, size in parts.items() if name.startswith(kind + "_"))
    return 8 * own / elements if elements else 8.0 * FP16


def _quantized_bits(parts: list[Part], kind: str, cache: LaneCache, shape: ModelShape) -> float | None:
    """Bits of an element outside the full-precision tokens; None where nothing is quantized."""
    own = [part for part in parts if part.kind == kind]
    size = sum(s for part in own for name, s in part.stream.nbytes().items() if name not in FULL_PRECISION)
    packed = sum(part.stream.packed_tokens * _elements(part, cache, shape) for part in own)
    return 8 * size / packed if packed else None


def tokens_quantized(cache: LaneCache) -> int:
    """The largest number of tokens held quantized in any layer."""
    return max((part.stream.packed_tokens for part in cache.parts), default=0)


def layers_quantized(cache: LaneCache) -> int:
    """Layers in which keys or values of any token are held quantized."""
    return len({(p.group, layer) for p in cache.parts if _holds_packed(p) for layer in p.layers.tolist()})


def quantized_keys(cache: LaneCache) -> tuple[int, int]:
    """Range of key positions held quantized in any layer; (0, 0) for none."""
    ranges = [part.stream.packed_range for part in cache.of("key") if _holds_packed(part)]
    return min((start for start, _ in ranges), default=0), max((end for _, end in ranges), default=0)


def _holds_packed(part: Part) -> bool:
    return part.stream.packed_tokens > 0
