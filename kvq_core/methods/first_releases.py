"""The first release of each engine that has a format: by the engine, then by what its command calls the format.

Where nothing else is said, a release is here that takes the word, and the one before it does not: read from the
archives of both on the package index. llama.cpp and ik_llama.cpp have builds only: the day and the pull request.
"""

import re
from collections.abc import Sequence

UNRELEASED = "no release"  # has it: a fork, or an open pull request
_LLAMA_CPP = (
    "2024-05-19 (PR 7372)"  # quantized values, which flash attention reads; keys alone from PR 4309, 2023-12-07
)

_FIRST: dict[str, dict[str, str]] = {
    "llama.cpp": {
        "f16": "2023-12-07 (PR 4309)",  # --cache-type-k; the cache itself was so before
        **dict.fromkeys(("q8_0", "q5_1", "q5_0", "q4_1", "q4_0"), _LLAMA_CPP),
        "iq4_nl": _LLAMA_CPP,  # as a type of keys from PR 6183, 2024-03-21
    },
    "ik_llama.cpp": {
        "q6_0": "2024-10-22 (PR 101)",  # in flash attention; the type itself PR 77, 2024-10-02
        "-vhad": "2026-03-28 (PR 1527)",  # -khad: PR 1033, 2025-12-04
    },
    "vLLM": {
        "fp8_e5m2": "0.3.0",
        "fp8": "0.4.3",  # e4m3 on NVIDIA GPUs; in 0.4.1 and 0.4.2 the word meant e5m2 there
        "bfloat16": "0.11.0",
        "--kv-cache-dtype-skip-layers": "0.19.0",
        "int8_per_token_head": "0.20.0",
        "fp8_per_token_head": "0.20.0",
        **dict.fromkeys((f"turboquant_{name}" for name in ("k8v4", "4bit_nc", "k3v4_nc", "3bit_nc")), "0.20.0"),
        "nvfp4": "0.21.0",  # PR 40177; 0.20 knows the word and raises NotImplementedError
        "int4_per_token_head": "0.25.0",
        "nvfp4_4over6": "0.28.0",
        "ultraquant_4bit": "0.32.0",
    },
    "SGLang": {
        "fp8_e5m2": "0.2.14",
        "fp8_e4m3": "0.4.1.post6",
        "fp4_mx_block16": "0.5.16, as fp4_e2m1 0.5.5.post3",  # memory_pool.py, MHATokenToKVPool; 0.5.4.post3: MLA alone
        "nvfp4": "0.5.16",
    },
    # the flag's pull request; the format is older (FP8_KV_CACHE in docs/source/precision.md of 2023, NVFP4: PR 6244)
    "TensorRT-LLM": dict.fromkeys(("fp8", "nvfp4"), "2026-03-03 (PR 11487)"),
    "transformers": {
        "dtype": "4.56.0, as torch_dtype before",  # from_pretrained's: modeling_utils.py
        "QuantizedCache": "4.42.0, with these arguments 4.56.0 at the latest",  # cache_utils.py of 4.41.2 to 4.56.0
    },
    "ExLlamaV3": {  # the first tag that holds the commit
        "-cq": "0.0.1",  # cf84811
        "-cca": "1.0.0",  # 84c3900
    },
}


def first_release(engine: str, word: str) -> str | None:
    """Of an engine with what its command calls ``word``; None where it is not known."""
    return _FIRST.get(engine, {}).get(word)


def latest(releases: Sequence[str | None]) -> str | None:
    """The first release that has all that these have: the latest of one engine's; None where one is not known."""
    known = [release for release in releases if release is not None]
    if not known or len(known) < len(releases):
        return None
    return UNRELEASED if UNRELEASED in known else max(known, key=_numbers)


def _numbers(release: str) -> list[int]:
    """Of a version or of a day, so that 0.20.0 comes after 0.4.3."""
    return [int(digits) for digits in re.findall(r"\d+", release)]
