"""Lanes of every method with its main variants, small enough for the tiny models."""

from kvq_core.spec import Lane

SMALL = {"group_size": 8, "residual_length": 8}
INNER = {"group_size": 8, "sink_tokens": 4, "recent_tokens": 8}
SPARSE = {"chunk_size": 8, "budget_tokens": 16, "outlier_chunks": 1, "local_chunks": 1}
LANES = [
    Lane(label="kivi", method="kivi", knobs=SMALL),
    Lane(label="squat", method="squat", knobs={**SMALL, "block_size": 8}),
    Lane(label="squat pre", method="squat", knobs={**SMALL, "rope": "pre"}),
    Lane(label="hybrid", method="innerq", knobs=INNER),
    Lane(label="folded", method="innerq", knobs={**INNER, "mode": "symmetric", "normalize_keys": "folded"}),
    Lane(label="svdq", method="svdq", knobs={"value_bits": 4}),
    Lane(label="sparse", method="svdq", knobs={"sparsity": SPARSE}),
    Lane(label="qaq", method="qaq"),
]
MORE = [
    Lane(label="token", method="per_token", knobs=SMALL),
    Lane(label="channel", method="per_channel", knobs=SMALL),
    Lane(label="asymmetric", method="innerq", knobs={**INNER, "mode": "asymmetric", "zero_point": "float16"}),
    Lane(label="prefill", method="innerq", knobs={**INNER, "mode": "hybrid_prefill", "normalize_keys": "off"}),
    Lane(label="target", method="svdq", knobs={"target_bits": 2.5, "per_head": True}),
    Lane(label="once", method="qaq", knobs={"update": "once", "unit": "layer"}),
    Lane(label="commvq", method="commvq", knobs={"levels": 4, "window": 16}),
    Lane(label="floor", method="fp16"),
]
SERVERS = [
    Lane(label="fp8", method="fp8"),
    Lane(label="e5m2", method="fp8", knobs={"format": "e5m2", "scale": "head"}),
    Lane(label="int8", method="int8_per_token_head"),
    Lane(label="fp8 head", method="fp8_per_token_head"),
    Lane(label="int4", method="int4_per_token_head"),
    Lane(label="nvfp4", method="nvfp4"),
    Lane(label="4 or 6", method="nvfp4", knobs={"four_over_six": True, "scale": "tensor"}),
    Lane(label="mxfp4", method="mxfp4"),
    Lane(label="ultra", method="ultraquant_4bit", tensors="values", knobs={"boundary_layers": 0}),
    Lane(label="turbo", method="turboquant", knobs={"boundary_layers": 1}),
    Lane(label="turbo 3", method="turboquant", knobs={"boundary_layers": 0, "preset": "3bit_nc"}),
    Lane(label="turbo paper", method="turboquant", knobs={"preset": "paper"}),
]
LLAMA = [
    Lane(label="bf16", method="bf16"),
    Lane(label="q8_0", method="q8_0"),
    Lane(label="q5_1", method="q5_1"),
    Lane(label="q5_0", method="q5_0", prefill="deployed"),
    Lane(label="q4_1", method="q4_1"),
    Lane(label="q4_0", method="q4_0", knobs={"rotate": False}, rotate="signed"),
    Lane(label="q4_0 values", method="q4_0", tensors="values", sink_tokens=2, recent_tokens=3),
    Lane(label="iq4_nl", method="iq4_nl", knobs={"quantize_query": False}),
    Lane(label="q6_0", method="q6_0", knobs={"rotate": True}),
    Lane(label="exl3", method="exl3", prefill="deployed"),
    Lane(label="exl3 K6 V5", method="exl3", knobs={"key_bits": 6, "value_bits": 5}),
    Lane(label="exl3 bent", method="exl3", knobs={"bits": 3, "compander": 0.65}),
]
TILES = [
    Lane(label="quanto", method="quanto", knobs={"residual_length": 8}),
    Lane(label="quanto 2", method="quanto", knobs={"bits": 2, "group_size": 16, "residual_length": 4}),
    Lane(label="hqq", method="hqq", knobs={"residual_length": 8}),
    Lane(label="hqq 8", method="hqq", knobs={"bits": 8, "axis": 1, "residual_length": 8}),
    Lane(label="kvarn", method="kvarn", knobs={"tile": 64, "sink_tokens": 16}),
    Lane(label="kvarn 3", method="kvarn", knobs={"bits": 3, "floor": None, "sink_tokens": 0, "iterations": 2}),
    Lane(label="oscar", method="oscar", knobs={"sink_tokens": 4, "recent_tokens": 8}),
    Lane(label="oscar ktk", method="oscar", knobs={"target": "ktk", "lloyd_max": True, "recent_tokens": 0}),
    Lane(label="oscar H", method="oscar", knobs={"target": "hadamard", "scale_dtype": "float32", "sink_tokens": 0}),
]  # what transformers quantizes anew, tiles, and rotated rows
STORAGE = [
    Lane(label="uniform", method="uniform"),
    Lane(label="uniform apart", method="uniform", knobs={"group_size": 16, "bits": 3, "outlier_fraction": 0.02}),
    Lane(label="gear", method="gear", knobs={"group_size": 8, "rank": 2}),
    Lane(label="gear-l", method="gear", knobs={"group_size": 32, "outlier_fraction": 0}),
    Lane(label="zipcache", method="zipcache", knobs={"streaming_gap": 4}),
    Lane(label="zipcache 1", method="zipcache", knobs={"streaming_gap": 1, "salient_fraction": 0.3}),
    Lane(label="kvquant", method="kvquant"),
    Lane(label="kvquant 3", method="kvquant", knobs={"bits": 3, "outlier_fraction": 0}),
    Lane(label="rvq", method="rvq"),
    Lane(label="rvq 1", method="rvq", knobs={"entries": 16, "steps": 8}),
    Lane(label="think", method="think"),
    Lane(label="think 4", method="think", knobs={"pruned": 0.25, "bits": 4}),
]
SELECTION = [
    Lane(label="h2o", method="h2o"),
    Lane(label="scissorhands", method="scissorhands", knobs={"heavy": 0.3, "recent": 0.2}),
    Lane(label="shadowkv", method="shadowkv", knobs={**SPARSE, "rank": 24}),
    Lane(label="shadowkv as it is", method="shadowkv"),
    *(
        Lane(label=f"by {by}", method="kivi", knobs=SMALL, select={"by": by})
        for by in ("h2o", "scissorhands", "shadowkv", "svdq")
    ),
]
EVERY = {
    "papers": LANES,
    "variants": MORE,
    "servers": SERVERS,
    "llama": LLAMA,
    "tiles": TILES,
    "storage": STORAGE,
    "selection": SELECTION,
}
