"""What each format and baseline was built from, for docs/formats.md: files of a repository at the version read, or a
pull request."""

from dataclasses import dataclass

from kvq_core.engines import engines
from kvq_core.methods import Method


@dataclass(frozen=True)
class Source:
    """``name``: what it is called, an engine whose version is known; ``files`` of ``repository`` at ``ref``;
    without ``ref`` the repository, or a ``pull`` request of it."""

    name: str
    repository: str
    files: tuple[str, ...] = ()
    ref: str | None = None
    pull: int | None = None

    def markdown(self) -> str:
        version = f" {engines()[self.name].version}" if self.name in engines() and self.ref else ""
        address = f"https://github.com/{self.repository}"
        if self.pull is not None:
            return f"{self.name} [pull request {self.pull}]({address}/pull/{self.pull})"
        if not self.files:
            return f"[{self.repository}]({address})"
        links = (f"[{file.rsplit('/', 1)[-1]}]({address}/blob/{self.ref}/{file})" for file in self.files)
        return f"{self.name}{version}: {', '.join(links)}"


def _llama_cpp(*files: str) -> Source:
    return Source("llama.cpp", "ggml-org/llama.cpp", files, "0c1e57098")


def _vllm(*files: str) -> Source:
    return Source("vLLM", "vllm-project/vllm", files, "v0.33.0")


_GGML = (_llama_cpp("ggml/src/ggml-common.h", "ggml/src/ggml-quants.c", "src/llama-kv-cache.cpp"),)
_PER_TOKEN_HEAD = (_vllm("vllm/v1/attention/ops/triton_reshape_and_cache_flash.py"),)
_CACHE = Source("transformers", "huggingface/transformers", ("src/transformers/cache_utils.py",), "v5.23.0")
_KERNELS = ("q_cache_kernels.cuh", "lmq.cuh")
SOURCES: dict[str, tuple[Source, ...]] = {
    **dict.fromkeys(("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"), _GGML),
    "q6_0": (Source("ik_llama.cpp", "ikawrakow/ik_llama.cpp", ("ggml/src/ggml-quants.c",), "8337e4cd3"),),
    "fp8": (_vllm("csrc/quantization/w8a8/fp8/nvidia/quant_utils.cuh"),),
    "int8_per_token_head": _PER_TOKEN_HEAD,
    "fp8_per_token_head": _PER_TOKEN_HEAD,
    "int4_per_token_head": (_vllm("vllm/v1/attention/ops/int4_per_token_head.py"),),
    "nvfp4": (_vllm("csrc/nvfp4_kv_cache_kernels.cu", "csrc/quantization/fp4/nvfp4_utils.cuh"),),
    "turboquant": (
        _vllm(
            "vllm/model_executor/layers/quantization/turboquant/config.py",
            "vllm/model_executor/layers/quantization/turboquant/centroids.py",
            "vllm/v1/attention/ops/triton_turboquant_store.py",
        ),
    ),
    "ultraquant_4bit": (_vllm("vllm/v1/attention/ops/ultraquant/format.py"),),
    "mxfp4": (
        Source(
            "SGLang",
            "sgl-project/sglang",
            ("python/sglang/srt/layers/quantization/kvfp4_tensor.py",),
            "v0.5.23",
        ),
    ),
    "quanto": (_CACHE, Source("optimum-quanto", "huggingface/optimum-quanto")),
    "hqq": (_CACHE, Source("hqq", "mobiusml/hqq")),
    "exl3": (
        Source(
            "ExLlamaV3",
            "turboderp-org/exllamav3",
            tuple(f"exllamav3/exllamav3_ext/cache/{file}" for file in _KERNELS),
            "4f8ad01",
        ),
    ),
    "kvarn": (Source("vLLM", "vllm-project/vllm", pull=46812), Source("KVarN", "huawei-csl/KVarN")),
    "oscar": (Source("SGLang", "sgl-project/sglang", pull=32129), Source("OSCAR", "FutureMLS-Lab/OSCAR")),
    "h2o": (Source("H2O", "FMInference/H2O"),),
}
OTHERS = {  # that no repository is the source of
    "fp16": "PyTorch's `float16`",
    "bf16": "PyTorch's `bfloat16`",
    "scissorhands": "its paper alone",
    "shadowkv": "`kv_cache.py` of its authors' code",
    "uniform": "",
}


def source_of(method: Method) -> str:
    """In Markdown; of a baseline that says where its authors' code is, that."""
    if method.name in OTHERS:
        return OTHERS[method.name]
    theirs = (way.how for way in method.elsewhere() if way.how.startswith("https://github.com/"))
    found = SOURCES.get(method.name) or tuple(Source(how, how.removeprefix("https://github.com/")) for how in theirs)
    return "; ".join(source.markdown() for source in found)
