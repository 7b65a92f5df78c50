"""How the layers of a model rotate their keys: looked at, for configurations do not tell.

Where the same token stands at every position and attention returns the values as they are, the hidden states of all
positions are equal in every layer, and so are the keys before RoPE. Keys that are equal after it were never rotated;
keys that are equal when rotated back were rotated as the tables say.
"""

import math
from collections.abc import Callable
from copy import copy
from importlib.metadata import version
from typing import Any, get_args

import torch
from torch import Tensor, nn

from kvq_core.machine.files import keep_memo, read_memo
from kvq_core.models.kinds import kinds_of
from kvq_core.models.lockstep import ATTENTION, attending, register_attention
from kvq_core.models.rope import Rope, Rotation
from kvq_core.models.scoring import Scoring
from kvq_core.models.shape import scoring_of
from kvq_core.models.stepping import replace_modules
from kvq_core.models.survey import attention_modules
from kvq_core.settings import settings

TOKENS = 12
VERSION = 3  # raised when a look may find something else: what was found before is looked at again
LEAST = 1e-2
_ROWS = 4  # tokens that are looked at: that of padding may be zeros
# of the mean change of a channel from position to position, relative to the channel: rounding stays below, turns above
_EQUAL = {torch.float32: 1e-3}
_EQUAL_HALF = 5e-2


def cached_rotations(name: str, layers: int, look: Callable[[], tuple[Rotation, ...]]) -> tuple[Rotation, ...]:
    """What ``look`` found for a model of that name and of as many layers when it was used first, under KVQ_HOME."""
    memo = settings().home / "rotations" / f"{name}-{version('transformers')}-{VERSION}.json"
    held = read_memo(memo)
    if isinstance(held, list) and len(held) == layers and all(kind in get_args(Rotation) for kind in held):
        return tuple(held)
    found = look()
    keep_memo(memo, found)
    return found


@torch.no_grad()
def probe(model: Any, rope: Rope) -> tuple[Rotation, ...]:
    """The rotation of each layer of a transformers model, "none" of those without keys; ``rope``: its tables for TOKENS
    positions or more."""
    embedding = model.get_input_embeddings().weight
    rows = torch.arange(1, _ROWS + 1, device=embedding.device) * len(embedding) // (_ROWS + 1)
    positions = torch.arange(TOKENS, device=embedding.device)[None]
    found: dict[int, Rotation] = {}

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        if how.reads is None:
            found[layer] = _judge(keys.float(), rope.table_of(layer), _EQUAL.get(keys.dtype, _EQUAL_HALF))
        newest = values[..., -queries.shape[-2] :, :]  # layers that keep nothing may be asked of the last token alone
        return newest.repeat_interleave(queries.shape[1] // values.shape[1], 1).transpose(1, 2)

    held = model.config._attn_implementation
    if held != ATTENTION:
        register_attention()
        model.set_attn_implementation(ATTENTION)
    try:
        with attending(attend, scoring_of(model)):
            ids = rows[:, None].expand(-1, TOKENS)
            _alike(model)(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=1)
    finally:
        if held != ATTENTION:
            model.set_attn_implementation(held)
    return tuple(found.get(layer, "none") for layer in range(len(kinds_of(model))))


def _alike(model: Any) -> Any:
    """The model, where states tell positions apart with attention that is handed the same hidden state at all."""
    if not any(kind.conv or kind.recurrent for kind in kinds_of(model)):
        return model
    return replace_modules(model, {module: _at_first(module) for module in attention_modules(model).values()})


def _at_first(module: nn.Module) -> nn.Module:
    """A module that reads the first position's hidden state at all positions."""
    twin = copy(module)

    def forward(*args: Any, **kwargs: Any) -> Any:
        args = tuple(_repeated(x) if at == 0 else x for at, x in enumerate(args))
        return module.forward(*args, **{k: _repeated(x) if k == "hidden_states" else x for k, x in kwargs.items()})

    twin.forward = forward
    return twin


def _repeated(hidden: Tensor) -> Tensor:
    return hidden[:, :1].expand_as(hidden)


def _judge(keys: Tensor, rope: Rope, equal: float) -> Rotation:
    """keys (rows, kv_heads, TOKENS, head_dim), equal at all positions before RoPE."""
    still, back = _change(keys), _change(rope.unrotate(keys, 0))
    if not min(still, back) < equal:  # NaN is not
        return "unknown"
    return "none" if still < back else "rope"


def _change(x: Tensor) -> float:
    """Mean over channels of the largest change from the first position on, relative to each channel's size; NaN where
    there is nothing but zeros. A channel that a norm switches off (some of Gemma 3's) holds no more than rounding of
    the one it is rotated with, so that sizes are LEAST of the largest at least."""
    size, change = x.abs().amax((0, 2)), (x - x[..., :1, :]).abs().amax((0, 2))
    return (change / size.clamp_min(LEAST * size.max())).mean().item() if size.any() else math.nan
