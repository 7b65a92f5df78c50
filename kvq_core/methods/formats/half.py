"""The unquantized cache in bfloat16, the dtype that most models are served in."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kvq_core.engines import first_release
from kvq_core.methods.base import Fitted, Prompt
from kvq_core.methods.deployments import HALF_MODEL, Elsewhere
from kvq_core.methods.formats.tokenwise import Format, TokenCodec


@dataclass(frozen=True)
class Bfloat16(TokenCodec):
    """Two bytes an element, rounded to the nearest, halves to even."""

    enters = torch.float32

    def store(self, x: Tensor) -> dict[str, Tensor]:
        return {"codes": x.bfloat16()}

    def load(self, tensors: dict[str, Tensor]) -> Tensor:
        return tensors["codes"].float()

    packed = TokenCodec.packed


class Bf16(Format):
    """Nothing is quantized; keys and values are rounded to bfloat16 when they enter the cache, 16 bits an element.

    Of those bits 8 are precision, where fp16 has 11: at the same size it loses 64 times as much power, and holds
    magnitudes beyond 65504 that fp16 cannot. What most servers do by default, since it is the model's own dtype.
    """

    name: ClassVar[str] = "bf16"
    title: ClassVar[str] = "BF16 cache"
    anywhere: ClassVar[bool] = True

    def fit(self, prompt: Prompt) -> Fitted:
        return Fitted(Bfloat16(), Bfloat16())

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        code = (
            "import torch\n"
            "from transformers import AutoModelForCausalLM\n"
            "model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16)\n"
            "model.generate(**inputs)"
        )
        return (
            Elsewhere("transformers", code, HALF_MODEL, since=first_release("transformers", "dtype")),
            Elsewhere("llama.cpp", "llama-server -m M.gguf -fa on -ctk bf16 -ctv bf16"),
            Elsewhere(
                "vLLM",
                "vllm serve M --kv-cache-dtype bfloat16",
                needs="Of NVIDIA's GPUs those since Ampere.",  # 0.33.0, v1/attention/backends/triton_attn.py
                since=first_release("vLLM", "bfloat16"),
            ),
        )

    @property
    def cache_types(self) -> dict[str, str]:
        return {"llama.cpp": "bf16", "ik_llama.cpp": "bf16", "vLLM": "bfloat16", "SGLang": "bf16"}

    def summary(self) -> str:
        return "8 bits of precision · nothing quantized"
