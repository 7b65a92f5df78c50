"""SVDq: keys projected on their own singular vectors, strong latent channels stored with more bits than weak ones."""

from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from kvq_core.codecs.groups import GroupCodec
from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, Method, ModelShape, Prompt, Space
from kvq_core.methods.svdq.latent import LatentCodec, side_by_side, singular_vectors
from kvq_core.methods.svdq.selection import Selector, Sparsity
from kvq_core.methods.widths import Bits

GROUPS = 8  # equal groups of latent channels, strongest first
NAMED = {
    "3": (8, 4, 4, 4, 2, 2, 0, 0),
    "2.25": (8, 4, 4, 2, 0, 0, 0, 0),
    "2": (8, 4, 4, 0, 0, 0, 0, 0),
    "2 with 1-bit groups": (8, 4, 2, 1, 1, 0, 0, 0),
    "1.75": (8, 4, 2, 0, 0, 0, 0, 0),
    "1.25": (4, 4, 2, 0, 0, 0, 0, 0),
}
Width = Annotated[int, Field(ge=0, le=8)]


class Svdq(Method):
    """The prompt's keys, before RoPE and with all heads of a layer side by side, are centred and projected on their
    right singular vectors; each eighth of these latent channels is stored with its own bit width, 0 drops it.

    Stored: packed codes, an fp16 scale and an fp16 minimum a latent channel over all prompt tokens, and per layer the
    mean and the kept singular vectors in fp16. With r kept channels of d = kv_heads x head_dim, an element of the
    prompt's keys costs the schedule's mean + 16 r/T + 32 r/(T d) + 16/T bits; the vectors are counted, so the method
    pays off only where T is much larger than d. Eq. 1 and 4: latent channels; Eq. 6: mean width; Algorithm 1 with the
    quantizer of Eq. 2 and 3. Values are left alone, or with value_bits quantized per token and head (the paper's V4).
    Generated tokens stay fp16. With sparsity (Section 5.2, ShadowKV's selection) a step reads few keys of the prompt:
    chunks chosen by landmarks, outlier chunks and the last ones; the latter two are fp16. Landmarks are stored and
    counted; how many keys a step touches is told apart from the stored bits.
    """

    name: ClassVar[str] = "svdq"
    title: ClassVar[str] = "SVDq"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2502.15304"
    scales = (None, "channels")
    deviations: ClassVar[tuple[str, ...]] = (
        "A 1-bit latent channel is read as mean ± E|x - mean|. With the paper's end points min and max, 1 bit is worse "
        "than dropping the channel for bell-shaped data.",
        "Eq. 3 prints 2b - 1 where Eq. 2 and the mathematics have 2^b - 1.",
        'The paper multiplies stored and touched bits ("410x" = 16/1.25 x 32); they are reported apart here.',
        'The paper leaves the basis out of its bit widths ("negligible"); it is counted here.',
        "target_bits is an addition: the schedule of that mean width with the least expected squared error on the "
        "prompt, layers weighted equally, found exactly over all widths 0 to 8 of the eight groups.",
    )

    schedule: tuple[Width, ...] = Field(
        NAMED["2"],
        min_length=GROUPS,
        max_length=GROUPS,
        title="Schedule",
        description="Bits of the eight groups of latent channels, strongest first; 0 drops a group. Those named by "
        "their mean are the paper's.",
        json_schema_extra={"named": {name: list(widths) for name, widths in NAMED.items()}},
    )
    target_bits: float | None = Field(
        None,
        ge=1 / GROUPS,
        le=8,
        title="Target bits",
        description="Mean width for which a schedule is chosen from the prompt's spectrum; empty: use Schedule.",
    )
    per_head: bool = Field(
        False, title="Per head", description="Decompose every head by itself instead of the layer's heads side by side."
    )
    value_bits: Bits | None = Field(
        None, title="Value bits", description="Quantize values per token to this many bits; empty leaves them in fp16."
    )
    sparsity: Sparsity | None = Field(
        None,
        title="Sparsity",
        description="Read chosen chunks of the prompt's keys at every step instead of all (ShadowKV's selection).",
    )

    @property
    def joint(self) -> bool:  # type: ignore[override]  # a schedule of the prompt decides it
        return self.target_bits is not None

    @property
    def from_data(self) -> str | None:
        return None if self.target_bits is None else "the schedule of latent channels"

    @property
    def not_chunked(self) -> str | None:
        return (
            None if self.sparsity is None else "sparsity chooses among the chunks of a prompt that has been read whole"
        )

    @property
    def chooses(self) -> bool:
        return self.sparsity is not None

    @property
    def key_space(self) -> Space:
        return "pre"

    def windows(self) -> tuple[Window, Window]:
        prompt = Window(prompt_only=True)
        local = self.sparsity and Window(recent=self.sparsity.recent, step=self.sparsity.chunk_size, prompt_only=True)
        return local or prompt, prompt if self.value_bits else Window(step=None)

    @property
    def not_centred(self) -> str | None:
        return "SVDq subtracts the prompt's mean key itself (Algorithm 1); leave center out"

    def why_not(self, shape: ModelShape) -> str | None:
        _, channels = self._latent(shape)
        if channels % GROUPS:
            return f"{channels} latent channels cannot be split into {GROUPS} equal groups"
        return None

    @property
    def spans_layers(self) -> bool:
        return self.target_bits is not None

    def across_layers(self, prompt: Prompt) -> Self:
        if self.target_bits is None:
            return self
        keys = side_by_side(prompt.keys, self.per_head)
        mean = keys.mean(-2).half()
        schedule = best_schedule(expected_errors(keys, mean, singular_vectors(keys, mean)), self.target_bits)
        return self.model_copy(update={"schedule": schedule, "target_bits": None})

    def fit(self, prompt: Prompt) -> Fitted:
        keys = side_by_side(prompt.keys, self.per_head)
        mean = keys.mean(-2).half()
        vectors = singular_vectors(keys, mean)
        schedule, notes = self.schedule, []
        if self.target_bits is not None:
            schedule = best_schedule(expected_errors(keys, mean, vectors), self.target_bits)
            notes.append(f"schedule chosen on the prompt: {list(schedule)}, mean {sum(schedule) / GROUPS:g} bits")
        size = vectors.shape[-1] // GROUPS
        kept = [i for g, width in enumerate(schedule) if width for i in range(g * size, (g + 1) * size)]
        shared = {"basis": vectors[..., kept].contiguous(), "mean": mean}
        notes.append(basis_note(len(kept), prompt.keys.shape[-2], sum(schedule) / GROUPS))
        selector = None
        if self.sparsity is not None:
            assert prompt.rotated is not None
            selector = Selector.of_prompt(prompt.rotated, self.sparsity, prompt.scaling)
            notes.append(selector.note(prompt.keys.shape[-2]))
        key = LatentCodec(schedule, prompt.keys.shape[1], self.per_head, prompt.metadata, shared, selector)
        value = None
        if self.value_bits is not None:
            value = GroupCodec(self.value_bits, prompt.values.shape[-1], "channels", prompt.metadata)
        return Fitted(key, value, tuple(notes), None if selector is None else selector.select)

    def as_stored(self, parts: dict[str, float], shape: ModelShape) -> Self:
        """With as many groups and outlier chunks as were kept; of their widths nothing is told or needed."""
        changes: dict[str, Any] = {}
        if self.target_bits is not None:
            units, channels = self._latent(shape)
            kept = round(parts.get("key_basis", 0) / (2 * units * channels * (channels // GROUPS)))
            changes = {"target_bits": None, "schedule": (1,) * kept + (0,) * (GROUPS - kept)}
        if self.sparsity is not None:
            changes["sparsity"] = self.sparsity.kept(parts, shape.kv_heads)
        return self.model_copy(update=changes)

    def _latent(self, shape: ModelShape) -> tuple[int, int]:
        """Bases of a layer and the channels of each."""
        return (shape.kv_heads, shape.head_dim) if self.per_head else (1, shape.kv_heads * shape.head_dim)

    def fixed_bytes(self, shape: ModelShape) -> tuple[int, int]:
        """Basis, mean, scales and zero-points a latent channel where no prompt decides the schedule; outlier chunks."""
        sparse = self.sparsity
        fixed = sparse.chunk_bytes(shape.kv_heads, shape.head_dim) if sparse else 0
        units, channels = self._latent(shape)
        kept = channels // GROUPS * sum(width > 0 for width in self.schedule)
        basis = 2 * units * (channels * kept + channels + 2 * kept)
        return fixed + (basis if self.target_bits is None else 0), 0

    def exact_bytes(self, shape: ModelShape, tokens: int) -> tuple[int, int]:
        return self.sparsity.chunk_bytes(shape.kv_heads, shape.head_dim, tokens) if self.sparsity else 0, 0

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        mean = sum(self.schedule) / GROUPS if self.target_bits is None else self.target_bits
        key, value = f"{mean:g}", f"{self.value_bits or 16}"
        return f"{self.name} " + {"both": f"K{key} V{value}", "keys": key, "values": value}[tensors]

    def summary(self) -> str:
        widths = f"schedule {' '.join(map(str, self.schedule))}"
        if self.target_bits is not None:
            widths = f"target {self.target_bits:g} bits"
        values = f"V{self.value_bits}" if self.value_bits else "V untouched"
        sparse = f" · reads {self.sparsity.budget_tokens} tokens" if self.sparsity else ""
        return f"K {widths} · {values}" + (" · per head" if self.per_head else "") + sparse


def expected_errors(keys: Tensor, mean: Tensor, vectors: Tensor) -> Tensor:
    """Squared error of each group of latent channels at 0 .. 8 bits, relative to the layer's energy: (GROUPS, 9).

    Dropped: the second moment, which is λ²/T (Theorem 4.1 without its factor T). 1 bit: that of mean ± E|x - mean|.
    More: range² / (12 (2^b - 1)²), Lemma 4.1 for the step the quantizer really has.
    """
    total = torch.zeros(GROUPS, 9, dtype=torch.float64)
    for x, m, basis in zip(keys, mean, vectors, strict=True):
        latent = (x - m.float()[..., None, :]) @ basis.float()  # (units, tokens, channels)
        centre = latent.mean(-2)
        spread = (latent - centre[..., None, :]).abs().mean(-2)
        energy, extent = latent.square().mean(-2), latent.amax(-2) - latent.amin(-2)
        steps = torch.tensor([12.0 * (2**b - 1) ** 2 for b in range(2, 9)], device=x.device)
        by_width = [energy, energy - centre.square() - spread.square(), *(extent.square() / s for s in steps)]
        errors = torch.stack(by_width, -1).double().unflatten(-2, (GROUPS, -1)).sum(-2)  # (units, GROUPS, 9)
        total += (errors.sum(0) / energy.double().sum().clamp_min(1e-30)).cpu()
    return total


def best_schedule(errors: Tensor, target_bits: float) -> tuple[int, ...]:
    """Widths of least summed error with mean at most ``target_bits``: exact, by dynamic programming over the groups."""
    budget = int(GROUPS * target_bits + 1e-9)
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}  # bits spent -> error, widths so far
    for group in errors.tolist():
        found: dict[int, tuple[float, tuple[int, ...]]] = {}
        for spent, (error, widths) in best.items():
            for width in range(min(8, budget - spent) + 1):
                candidate = (error + group[width], (*widths, width))
                if spent + width not in found or candidate < found[spent + width]:
                    found[spent + width] = candidate
        best = found
    return min(best.values())[1]


def basis_note(kept: int, tokens: int, mean_bits: float) -> str:
    """What the basis costs, said plainly where it is most of the cost."""
    cost = 16 * kept / tokens
    note = f"the basis costs 16 r/T = 16·{kept}/{tokens} = {cost:.2f} bits a key element of the prompt"
    if cost < mean_bits:
        return note
    return f"{note}, more than the {mean_bits:g} bits of the codes: SVDq is made for prompts much longer than this one"
