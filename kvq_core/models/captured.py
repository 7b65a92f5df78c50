"""``generate`` whose decode steps are one CUDA graph: every launch of a step is the same as the last one's.

transformers' own loop asks the cache for lengths and builds masks anew at each step. This one, given to ``generate`` as
``custom_generate``, holds the step's token and its position in place: a packed cache of groups of codes finds its
lengths on the device. The first step runs as it is, which compiles kernels; the second is captured and played again.
"""

from collections.abc import Callable
from typing import Any

import torch
from kvq_kernels import Store, same_launches, uncounted
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput

from kvq_core.errors import ModelError
from kvq_core.models.cache_name import cache_name, given_cache
from kvq_core.models.packed_cache import TicketCache

Forward = Callable[[], Tensor]
READS_LENGTHS = ("dynamic", "longrope")  # kinds of RoPE that look at positions on the host


def captured_steps(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    **kwargs: Any,
) -> Any:
    """For ``model.generate(past_key_values=packed_cache(...), custom_generate=captured_steps)``: greedy or sampled.
    Takes and gives what transformers' own loops do.

    Steps are captured on a GPU where every layer's step is the same launches, and run one by one elsewhere. Raises
    ModelError for what it does not do: other caches, beams, and attention or hidden states as outputs.
    """
    cache = given_cache(kwargs)
    if not isinstance(cache, TicketCache):
        raise ModelError(f"captured_steps needs a packed cache as {cache_name()}, not {type(cache).__name__}.")
    _refuse(generation_config)
    logits, step = _prompt(model, cache, input_ids, kwargs.get("attention_mask"))
    given, raw = list[Tensor](), list[Tensor]()
    going = torch.ones(len(input_ids), dtype=torch.long, device=input_ids.device)
    while True:
        scores = logits_processor(input_ids, logits.float())
        if generation_config.output_scores:
            given.append(scores)
        if generation_config.output_logits:
            raw.append(logits.float())
        chosen = _chosen(scores, generation_config)
        if (pad := generation_config._pad_token_tensor) is not None:
            chosen = torch.where(going == 1, chosen, pad.to(chosen.device))
        input_ids = torch.cat([input_ids, chosen[:, None]], -1)
        going = going & ~stopping_criteria(input_ids, None)
        if not bool(going.any()):
            break
        logits = step(chosen)
    if not generation_config.return_dict_in_generate:
        return input_ids
    found: dict[str, Any] = {"scores": tuple(given) or None, "logits": tuple(raw) or None}
    return GenerateDecoderOnlyOutput(sequences=input_ids, **found, **{cache_name(): cache})  # type: ignore[arg-type]


def _refuse(config: GenerationConfig) -> None:
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name, None):
            raise ModelError(f"captured_steps gives no {name.removeprefix('output_')}; leave out {name}.")
    if (config.num_beams or 1) > 1:
        raise ModelError(f"captured_steps goes on with one text a row, not num_beams = {config.num_beams}.")


def _chosen(scores: Tensor, config: GenerationConfig) -> Tensor:
    """The next token of each row."""
    if not config.do_sample:
        return scores.argmax(-1)
    return torch.multinomial(torch.softmax(scores, -1), 1).squeeze(1)


def _prompt(model: Any, cache: TicketCache, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, "CapturedStep"]:
    """Read what of a prompt is not held yet: logits (batch, vocabulary) after it, and the steps that follow."""
    mask = torch.ones_like(ids) if mask is None else mask
    positions = (mask.long().cumsum(-1) - 1).clamp_min(0)
    held = cache.get_seq_length()
    if held >= ids.shape[-1]:
        raise ModelError(f"The packed cache holds {held} tokens already, and the prompt has {ids.shape[-1]}.")
    found = model(
        input_ids=ids[:, held:],
        attention_mask=mask,
        position_ids=positions[:, held:],
        use_cache=True,
        logits_to_keep=1,
        **{cache_name(): cache},
    )
    return found.logits[:, -1], CapturedStep(model, cache, positions[:, -1:] + 1)


class CapturedStep:
    """One token a row through a model, from the same memory to the same memory. ``positions`` (batch, 1): of the next.

    ``capture`` makes of a forward pass one that can be played again; None where steps are not the same launches.
    """

    def __init__(self, model: Any, cache: TicketCache, positions: Tensor):
        self.model, self.cache, self.positions = model, cache, positions.clone()
        self.ids = torch.zeros_like(self.positions)
        self.ran = False
        self.play: Forward | None = None
        self.tables: list[int] = []  # where blocks were found when the step was captured
        self.capture = cuda_graph if self.positions.is_cuda else None

    def __call__(self, chosen: Tensor) -> Tensor:
        """Tokens (batch,) -> logits (batch, vocabulary) after them, which the next call writes over."""
        self.ids.copy_(chosen[:, None])
        stores = [store for layer in self.cache.held for store in layer.whole]
        if self.ran and self.capture is not None and self.alike:
            found = self._played(self.capture, stores)
        else:
            found, self.ran = self._forward(), True
        self.positions.add_(1)
        return found

    @property
    def alike(self) -> bool:
        """Whether all that a step launches is the same at every step."""
        rope = getattr(self.model.config, "rope_parameters", None) or {}
        if rope.get("rope_type") in READS_LENGTHS or not self.cache.plain:
            return False
        return all(
            len(held) == 2
            and held[0].ring.device == self.positions.device
            and same_launches(held[0], held[1], self.positions, held[0].path)
            for held in (layer.whole for layer in self.cache.held)
        )

    def _forward(self) -> Tensor:
        found = self.model(
            input_ids=self.ids, position_ids=self.positions, use_cache=True, **{cache_name(): self.cache}
        ).logits[:, -1]
        assert isinstance(found, Tensor)
        return found

    def _played(self, capture: Callable[[Forward], Forward], stores: list[Store]) -> Tensor:
        for store in stores:
            store.reserve_step()
        tables = [store.pool.table.data_ptr() for store in stores]
        with uncounted():
            if self.play is None or tables != self.tables:  # a table is outgrown after a million tokens
                self.play, self.tables = capture(self._forward), tables
            found = self.play()
        for store in stores:
            store.count_step()
        return found


def cuda_graph(forward: Forward) -> Forward:
    """Capture what a forward pass launches; nothing of it has run then."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = forward()

    def play() -> Tensor:
        graph.replay()
        return found

    return play
