"""The scales and the rotation a lane stores its tensors behind, and what a method is fitted on then.

Keys are divided by their scales, less their constant where they are centred: k / s - c / s is (k - c) / s. They are
turned after that, and after RoPE; values as they are. Queries that meet the cache
are left alone, since what is read has been turned back. A method that looks at queries while it is fitted sees them in
the basis its keys are stored in, where every score is what it was.
"""

from dataclasses import replace

from torch import Tensor

from kvq_core.codecs.fold import Fold, pair_scales
from kvq_core.codecs.hadamard import SEED, Hadamard, largest_block
from kvq_core.codecs.queries import QueryRounding
from kvq_core.methods import Prompt
from kvq_core.methods.base import Select
from kvq_core.spec import Folding, Rotation


def rotation_of(how: Rotation, block: int | None, prompt: Prompt) -> Hadamard | None:
    """Of the layers of a prompt; None for ``none``. ``block``: channels of one, None for as many as can be."""
    if how == "none":
        return None
    _, heads, _, dim = prompt.keys.shape
    size, device = block or largest_block(dim), prompt.keys.device
    if how == "hadamard":
        return Hadamard.of(size, device)
    return Hadamard.signed(size, device, prompt.layers or range(len(prompt.keys)), heads, dim)


def fold_of(how: Folding, prompt: Prompt) -> Fold | None:
    """The scales of a prompt's keys, less their constant where they are centred; None for ``none``."""
    return None if how == "none" else Fold(pair_scales(prompt.keys, prompt.pairs, prompt.metadata))


def fold_prompt(prompt: Prompt, fold: Fold | None) -> Prompt:
    """What a method is fitted on: keys divided, and queries as they meet them."""
    if fold is None:
        return prompt
    queries, gram, true = prompt.queries, prompt.gram, prompt.rotated
    return replace(
        prompt,
        keys=fold.divided(prompt.keys),
        queries=None if queries is None else fold.asked(queries),
        gram=None if gram is None else fold.gram(gram),
        rotated=None if true is None else fold.divided(true),
    )


def rotate_prompt(prompt: Prompt, rotation: Hadamard | None, keys: bool) -> Prompt:
    """What a method is fitted on: values turned, and where ``keys`` are stored after RoPE those and queries too."""
    if rotation is None:
        return prompt

    prompt = replace(prompt, values=rotation.turned(prompt.values))
    if not keys:
        return prompt
    queries, gram, true = prompt.queries, prompt.gram, prompt.rotated
    return replace(
        prompt,
        keys=rotation.turned(prompt.keys),
        queries=None if queries is None else rotation.turned(queries),
        gram=None if gram is None else rotation.gram(gram),
        rotated=None if true is None else rotation.turned(true),
    )


def asked_turned(select: Select, rotation: Hadamard | None, fold: Fold | None = None) -> Select:
    """A choice of keys that was fitted on divided and turned ones, asked with queries as they are."""
    if rotation is None and fold is None:
        return select

    def selected(layer: int, queries: Tensor, tokens: int) -> Tensor:
        asked = queries[None] if fold is None else fold.on(layer).asked(queries[None])
        return select(layer, (asked if rotation is None else rotation.on(layer).turned(asked))[0], tokens)

    return selected


def rounded_turned(rounding: QueryRounding, rotation: Hadamard | None, fold: Fold | None = None) -> QueryRounding:
    """Queries (..., query_heads, n, head_dim) as they are, rounded in the basis of the keys they meet, of one layer."""
    if fold is not None:
        inner = rounded_turned(rounding, rotation)
        return _of_rows(lambda queries: fold.asked_back(inner(fold.asked(queries))))
    if rotation is None:
        return rounding
    return _of_rows(lambda queries: rotation.back(rounding(rotation.turned(queries))))


def _of_rows(rounding: QueryRounding) -> QueryRounding:
    """One of queries (rows, query_heads, n, head_dim) as one of any number of dimensions before these."""
    return lambda queries: rounding(queries.reshape(-1, *queries.shape[-3:])).view(queries.shape)


def rotation_note(rotation: Hadamard) -> str:
    """What the lane's card says."""
    signs = "" if rotation.signs is None else f", after signs of seed {SEED}"
    return f"rotated in blocks of {rotation.block} channels{signs}; nothing is stored for it"
