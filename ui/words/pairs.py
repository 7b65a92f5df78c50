"""Keys by RoPE pair, in a sentence: how much of what is constant, of what differs and of errors slow pairs hold."""

import numpy as np

from kvq_core.analysis.plans import shape_of
from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import Record
from ui.figures.base import lanes_with
from ui.figures.pairs import pair_squares, pairs_at, tokens_of
from ui.html.numbers import join_words, percent, significant

MISSING = "Not captured in this run."


def without_pairs(record: Record, arrays: Arrays, layer: int) -> str:
    """Why there is no figure by pair."""
    of = array(arrays, "pairs/of")
    if of is None:
        return MISSING
    if layer not in shape_of(record).captured:
        return f"Layer {layer} is not looked at."
    if of[layer].min() < 0:
        return f"How the model turns the keys of layer {layer} is not known, so neither are pairs of channels."
    return f"Layer {layer} has no RoPE: nothing turns its keys."


def by_pair(record: Record, arrays: Arrays, layer: int, kv_head: int) -> str:
    """What the pairs hold together that turn by less than a radian over the run's tokens; nothing where there are none,
    or it was not captured."""
    pairs, tokens = pairs_at(arrays, layer), tokens_of(record)
    if pairs is None or not (slow := pairs.theta * tokens < 1).any():
        return ""

    def share(squares: np.ndarray) -> str:
        return percent(float(squares[slow].sum() / squares.sum()))

    named = {"key_bias": "the key projection's bias", "key_mean": "the mean key", "key_spread": "the spread around it"}
    found = {what: pair_squares(arrays, name, pairs, layer, kv_head) for name, what in named.items()}
    held = [f"{share(squares)} of {what}" for what, squares in found.items() if squares is not None and squares.any()]
    spread = pair_squares(arrays, "key_spread", pairs, layer, kv_head)
    if spread is None or not spread.any():
        return ""
    said = (
        f"In KV head {kv_head}, {int(slow[pairs.of].sum())} of {len(pairs.of)} channels are in RoPE pairs that turn by "
        f"less than 1 rad over {tokens} tokens; they hold {join_words(held)}, by squared size."
    )
    lanes = lanes_with(record, arrays, "key_channel_error")
    errors = [(float(error[layer, kv_head].sum()) / tokens, lane.label) for _, lane, error in lanes]
    if not errors:
        return said
    most, label = max(errors)
    times = significant((most / spread.sum()) ** 0.5, 2)
    return f"{said} {label} errs most in this head, by {times} times that spread over all its pairs."
