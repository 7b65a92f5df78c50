"""A model in memory, and what the rest of the project may know about it."""

from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvq_core.errors import ModelError
from kvq_core.machine import threads
from kvq_core.methods import ModelRef, ModelShape
from kvq_core.models.body import body
from kvq_core.models.cache_name import cache_name
from kvq_core.models.head import logits_of
from kvq_core.models.lockstep import attending
from kvq_core.models.probe import TOKENS, cached_rotations, probe
from kvq_core.models.reader import Reader
from kvq_core.models.rope import Rope, Rotation
from kvq_core.models.scoring import Scoring
from kvq_core.models.shape import interleaved_in_gguf, key_bias_of, rope_of, scoring_of, shape_of
from kvq_core.models.stepping import StepModels
from kvq_core.models.survey import attention_modules

if TYPE_CHECKING:
    from kvq_core.models.states import States


@dataclass
class LoadedModel(Reader):
    """A model, its tokenizer and the facts a run records. Neither weights nor modules are ever changed, so that runs in
    several threads may share it.

    ``weights_hash`` names the weights, to which learned data belongs; ``model_hash`` all that decides what the model
    answers: weights, configuration, tokenizer and chat template.
    """

    id: str
    title: str
    revision: str | None
    model: Any  # a transformers causal language model; its attributes differ by architecture
    tokenizer: Any
    weights_hash: str
    model_hash: str
    quantization: str | None = None  # how the GGUF file it came from held its weights, such as "Q4_1: Q4_1 210, F32 61"
    weights_bytes: int | None = None  # of the file that holds them; None: not known
    _stepping: StepModels = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._stepping = StepModels(self.model)

    @property
    def ref(self) -> ModelRef:
        return ModelRef(self.id, self.weights_hash, interleaved_in_gguf(self.model))

    def again(self, id: str, revision: str | None) -> tuple[str, str | None]:
        """Id and revision for asking again, wherever that is, for this model, which these gave here."""
        return (id, revision) if id == self.id else (self.id, None)

    @cached_property
    def shape(self) -> ModelShape:
        return shape_of(self.model)

    @cached_property
    def layer_devices(self) -> tuple[torch.device, ...]:
        """The device of each layer's attention; several where the model is larger than one device. Of a layer without
        attention that of the token ids."""
        own = attention_modules(self.model)
        return tuple(next(own[i].parameters()).device if i in own else self.device for i in range(self.shape.layers))

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    @cached_property
    def widest(self) -> int:
        """Weights in the widest matrix of a layer."""
        layers = body(self.model).layers
        return max(weight.numel() for weight in layers.parameters() if weight.dim() > 1)

    @property
    def device(self) -> torch.device:
        """Where token ids go."""
        return self.model.get_input_embeddings().weight.device

    @cached_property
    def key_bias(self) -> Tensor | None:
        """The bias of the layers' key projections, before RoPE: (layers, kv_heads, head_dim) float32. None where there
        is none, or a norm follows, so that it is no constant of the keys."""
        return key_bias_of(self.model) if self.shape.key_bias == "bias" else None

    def rope(self, tokens: int) -> Rope:
        """RoPE of all layers for positions 0 .. tokens-1, applied by the model's own function."""
        rope, rotations = rope_of(self.model, tokens), self.rotations
        return rope if set(rotations) == {"rope"} else replace(rope, rotations=rotations)

    @cached_property
    def rotations(self) -> tuple[Rotation, ...]:
        """How each layer rotates its keys: looked at once, with the model running a few tokens, and then known."""
        memo = f"{self.model_hash}-{str(self.dtype).removeprefix('torch.')}"
        found = cached_rotations(memo, self.shape.layers, lambda: probe(self.model, rope_of(self.model, TOKENS)))
        self.shape = replace(self.shape, unknown_rope=tuple(i for i, kind in enumerate(found) if kind == "unknown"))
        return found

    @cached_property
    def scoring(self) -> tuple[Scoring | None, ...]:
        """What each layer makes of q·k; None of layers that do not attend."""
        return scoring_of(self.model)

    def states(self) -> "States | None":
        """Empty states for one forward pass after the other; None of a model whose layers keep none."""
        if not self.shape.stateful:
            return None
        from kvq_core.models.states import States  # takes transformers' caches, and with them much of torch

        return States.empty(self.model.config)

    @torch.no_grad()
    def forward(
        self, ids: Tensor, start: int, attend: Any, last_only: bool = False, states: "States | None" = None
    ) -> Tensor:
        """One forward pass: ids (rows, tokens) at positions start, start+1, ... -> logits (rows, tokens, vocabulary).

        ``attend`` answers every attention call (see lockstep.py); ``states`` of the rows after the tokens before, which
        are brought up to date. Logits are float32; with ``last_only`` they are those of the last token alone.
        """
        if last_only:  # some models would ask layers that keep nothing of the last token alone
            return self.head(self.hidden(ids, start, attend, states)[:, -1:])
        return self._pass(self.model, ids, start, attend, states).logits.float()

    def answers(self, ids: Tensor, attend: Any) -> Tensor:
        """``forward`` of whole texts, whose logits, in the model's dtype, have gradients where gradients are on."""
        logits: Tensor = self._pass(self.model, ids, 0, attend, None).logits
        return logits

    @torch.no_grad()
    def hidden(self, ids: Tensor, start: int, attend: Any, states: "States | None" = None) -> Tensor:
        """What the head reads after ``forward`` of the same: (rows, tokens, hidden size), in the model's dtype."""
        return self._pass(body(self.model), ids, start, attend, states).last_hidden_state

    def _pass(self, module: Any, ids: Tensor, start: int, attend: Any, states: "States | None") -> Any:
        positions = torch.arange(start, start + ids.shape[1], device=self.device)[None]
        if states is None and self.shape.stateful:
            assert not start, "a model with states goes on from those after the tokens before"
            states = self.states()
        options = {"use_cache": False} if states is None else {"use_cache": True, cache_name(): states}
        with attending(attend, self.scoring):
            return module(input_ids=ids.to(self.device), position_ids=positions, **options)

    @torch.no_grad()
    def head(self, hidden: Tensor) -> Tensor:
        """Logits (rows, tokens, vocabulary) float32 of hidden states (rows, tokens, hidden size)."""
        return logits_of(self.model, hidden).float()

    def computed_by(self, model: Any) -> "LoadedModel":
        """The same model with other modules, which hold the same weights."""
        twin = copy(self)  # with what is known of it
        twin.model = model
        twin._stepping = StepModels(model)
        return twin

    @property
    def narrow(self) -> bool:
        """Whether a product of a few rows gains nothing from being divided by torch."""
        return self.widest < threads.NARROW

    def stepping(self) -> "LoadedModel":
        """The same model as runs compute it, see models/stepping.py."""
        divides = self.narrow and self.device.type == "cpu"
        return self.computed_by(self._stepping.by(torch.get_num_threads() if divides else 1))

    def checked(self, logits: Tensor) -> Tensor:
        """The logits of a full-precision pass. Raises ModelError where the model does not answer numbers."""
        if not bool(logits.isfinite().all()):
            raise ModelError(
                f"{self.title} answers NaN or infinity instead of numbers: its weights are damaged, or its numbers are "
                f"too large for {str(self.dtype).removeprefix('torch.')}. Check its files, or pick another model."
            )
        return logits
