"""Bundles whose lanes meet one budget: every family of methods at all its widths, and of each the width that fits."""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

from kvq_core.errors import KvqError
from kvq_core.methods import make
from kvq_core.methods.sizes import sizes

LaneData = dict[str, Any]

NEAR = 0.02  # of the budget, by which a lane may be above it and is within it all the same
PAIRS = ((8, 8), (8, 4), (4, 4), (4, 2), (3, 3), (2, 2))
LATENT = ((4.0, 8), (4.0, 4), (3.0, 4), (2.5, 4), (2.0, 4), (2.5, 2), (1.25, 2))  # of SVDq


def _widths(method: str, **more: Any) -> list[LaneData]:
    return [{"method": method, "knobs": {"key_bits": key, "value_bits": value, **more}} for key, value in PAIRS]


@cache
def families() -> dict[str, list[LaneData]]:
    """Every family at the widths that are compared, most bits first."""
    exl = [(key, value) for key, value in product(range(8, 1, -1), repeat=2) if 0 <= key - value <= 2]
    return {
        "llama.cpp": [{"method": name} for name in ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")],
        "vLLM": [
            {"method": name}
            for name in ("int8_per_token_head", "fp8_per_token_head", "fp8", "nvfp4", "int4_per_token_head")
        ],
        "TurboQuant": [
            {"method": "turboquant", "knobs": {"preset": name}} for name in ("k8v4", "4bit_nc", "k3v4_nc", "3bit_nc")
        ],
        "ExLlamaV3": [{"method": "exl3", "knobs": {"key_bits": key, "value_bits": value}} for key, value in exl],
        "KIVI": _widths("kivi"),
        "SQuat": _widths("squat"),
        "InnerQ": [lane for lane in _widths("innerq") if 8 not in lane["knobs"].values()],
        "Per token": _widths("per_token"),
        "KVarN": [{"method": "kvarn", "knobs": {"key_bits": k, "value_bits": v}} for k, v in ((4, 4), (4, 2), (2, 2))],
        "GEAR": [{"method": "gear", "knobs": {"bits": bits}} for bits in (4, 2)],
        "QAQ": [{"method": "qaq", "knobs": {"target_bits": bits}} for bits in (8.0, 6.0, 4.0, 3.0, 2.5, 2.0, 1.5)],
        "SVDq": [{"method": "svdq", "knobs": {"target_bits": key, "value_bits": value}} for key, value in LATENT],
    }


def equal_bytes(bits: float = 4.5, tokens: int = 1024, head_dim: int = 64) -> list[LaneData]:
    """Of each family the lane with the most bits within the budget, or the nearest one, whose label says that it is
    beyond it; ``bits`` an element of the whole cache, full-precision windows included, of so many ``tokens``."""
    found = []
    for family in families():
        known = _sized(family, tokens, head_dim)
        if not known:
            continue
        within = [one for one in known if one[0] <= bits * (1 + NEAR)]
        size, lane = max(within, key=lambda one: one[0]) if within else min(known, key=lambda one: one[0])
        short = make(lane["method"], **lane.get("knobs", {})).short()
        beyond = "" if within else f", cannot reach {bits:g}"
        found.append({**lane, "label": f"{short} · {size:.2f} bits{beyond}"})
    return found


@cache
def _sized(family: str, tokens: int, head_dim: int) -> list[tuple[float, LaneData]]:
    """A family's lanes with their bits; those that cannot run are left out."""
    found = []
    for lane in families()[family]:
        try:
            size = sizes(make(lane["method"], **lane.get("knobs", {})), tokens, head_dim).mean
        except KvqError:
            continue
        found.append((size, lane))
    return found


def equal_loss() -> Iterator[LaneData]:
    """Each family at all its widths: which takes the fewest bytes within a loss is read off the run."""
    for family, lanes in families().items():
        for lane in lanes:
            method = make(lane["method"], **lane.get("knobs", {}))
            knobs = lane.get("knobs", {})
            alike = "key_bits" not in knobs or knobs["key_bits"] == knobs["value_bits"]
            if alike or len(lanes) <= len(PAIRS):
                yield {**lane, "label": f"{family} {method.short()}"}
