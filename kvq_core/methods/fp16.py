"""The unquantized cache rounded to fp16: the noise floor every other lane is read against."""

from typing import ClassVar

from kvq_core.codecs.window import Window
from kvq_core.engines import first_release
from kvq_core.methods.base import Fitted, Method, Prompt
from kvq_core.methods.deployments import HALF_MODEL, Elsewhere


class Fp16(Method):
    """Nothing is quantized; keys and values are rounded to fp16 when they enter the cache, 16 bits an element.

    A difference from the reference that this lane shows as well is rounding noise, not quantization.
    """

    name: ClassVar[str] = "fp16"
    title: ClassVar[str] = "FP16 cache"
    quantizes: ClassVar[bool] = False
    anywhere: ClassVar[bool] = True
    token_local = (True, True)

    def windows(self) -> tuple[Window, Window]:
        return Window(step=None), Window(step=None)

    def fit(self, prompt: Prompt) -> Fitted:
        return Fitted(None, None)

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        code = (
            "import torch\n"
            "from transformers import AutoModelForCausalLM\n"
            "model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float16)\n"
            "model.generate(**inputs)"
        )
        return (
            Elsewhere("transformers", code, HALF_MODEL, since=first_release("transformers", "dtype")),
            Elsewhere("llama.cpp", "--cache-type-k f16 --cache-type-v f16", since=first_release("llama.cpp", "f16")),
        )

    @property
    def cache_types(self) -> dict[str, str]:
        return {"llama.cpp": "f16", "ik_llama.cpp": "f16", "vLLM": "float16", "transformers": '"dynamic"'}

    def summary(self) -> str:
        return "noise floor · nothing quantized"
