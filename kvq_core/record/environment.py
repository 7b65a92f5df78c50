"""Where and with what a run was computed, as its record says it."""

from typing import Any

from kvq_core.record.prompt_fields import RecordPart


class ReferenceFile(RecordPart):
    """The file that lanes are scored against where it is not their own model's."""

    model: str
    model_title: str
    weights_hash: str
    model_hash: str
    quantization: str | None
    weights_bytes: int | None


class Environment(RecordPart):
    """Where and with what the run was computed."""

    versions: dict[str, str]
    device: str
    dtype: str
    model: str
    model_title: str
    weights_hash: str
    model_hash: str | None = None  # of weights, configuration, tokenizer and chat template; older runs: unknown
    quantization: str | None = None  # how a GGUF file held the weights, such as "Q4_1: Q4_1 210, F32 61"; else None
    weights_bytes: int | None = None  # of the file that holds the weights; None: not known
    reference: ReferenceFile | None = None  # None: the model itself
    revision: str | None
    seed: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    kinds: list[dict[str, Any]] | None = None  # what each layer keeps (LayerKind); None: keys and values of all tokens
    attention: str = "kvq lock-step"
    lanes_at_once: int | None = None  # lanes of a batch, whose size moves the KLD of each a little; None: all in one
    reference_apart: bool = False  # the reference's logits are of a batch of its own, without the lanes

    @property
    def weights_note(self) -> str | None:
        """What a reader must know of weights that were quantized before they came here; None for others."""
        if self.reference is not None:
            return (
                f"Lanes follow {self.reference.model_title} in full precision and are scored against its logits: a "
                "lane's distance is that of this file's weights and of its cache together, the floor's that of the "
                "weights alone."
            )
        if self.quantization is None:
            return None
        kind = self.quantization.partition(":")[0]
        return f"Weights are the file's ({kind}), dequantized: lanes compare caches of this file."
