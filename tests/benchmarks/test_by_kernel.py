"""What docs/gpu.md says of counts: limits are told apart from what is over them, and targets from what falls short."""

import pytest

from benchmarks import by_kernel

COUNTED = {
    "date": "2026-01-01",
    "triton": "3.9",
    "fingerprint": "aaaabbbbcccc",
    "counted": "instructions",
    "assumed": {"issued": 0.65, "copied": 0.87, "attended": 0.85},
}


def decode(capability, instructions, heads=1, dim=64):
    chips = {80: ["A100"], 90: ["H100", "H200"]}[capability]
    numbers = {"instructions": instructions, "most": 2.6, "spills": 0, "registers": 99, "bytes_a_load": 15.0}
    form = {"operation": "decode_attention", "method": "kivi-2", "head_dim": dim, "query_heads": heads}
    speed = {name: dict.fromkeys(chips, 1.0) for name in ("share", "gain")}
    return form | numbers | speed | {"capability": capability}


def quantized(method, capability, **share):
    numbers = {"instructions": 20.0, "spills": 0, "registers": 48, "share": share}
    return {"operation": "quantize_pack", "method": method, "capability": capability} | numbers


@pytest.fixture
def told(monkeypatch):
    def told(*forms, others=None):
        monkeypatch.setattr(by_kernel, "figures", lambda name: COUNTED | {"forms": list(forms), "others": others or {}})
        return by_kernel.kernels_part()

    return told


def test_what_one_decimal_would_hide_is_told_with_two(told):
    text = told(decode(80, 1.62), decode(90, 2.64, 16))
    assert "| 1, 16 | 1.6 · 2.64 | 2.6 |" in text
    assert (
        "Over its limit, on sm_80, sm_90 or both: KIVI, 2 bits, with 16 query heads a KV head at head_dim 64." in text
    )


def test_nothing_is_over_where_all_keep_to_their_limits(told):
    pair = quantized("hybrid-tokens", 80, A100=0.7), quantized("hybrid-tokens", 90, H100=0.8)
    text = told(decode(80, 2.6), decode(90, 1.0), *pair)
    assert "| 2.60 · 1.0 |" in text and "Over" not in text and "below" not in text


def test_other_versions_are_over_by_themselves_and_alike_ones_together(told):
    rows = [decode(90, 2.7, heads, dim) for heads in (1, 4) for dim in (64, 128)]
    text = told(decode(80, 1.0), decode(90, 1.0), others={"3.4": rows})
    assert "both: KIVI, 2 bits, with 1, 4 query heads a KV head at head_dim 64, 128 (Triton 3.4)." in text


def test_quantizing_that_falls_short_of_its_target_by_count_is_named_by_chip(told):
    pairs = [quantized("asymmetric-tokens", 80, A100=0.8), quantized("asymmetric-tokens", 90, H100=0.71, H200=0.69)]
    text = told(decode(80, 1.0), decode(90, 1.0), *pairs)
    assert "below its target by count, 70 % of a copy's bandwidth: asymmetric, along tokens on H200." in text
