"""The dials of stress as the form shows them, and in a few words. No Gradio here."""

from typing import Any

from kvq_core.methods import Knob, knobs
from kvq_core.spec import Stress
from ui.form.lanes import parse_layers
from ui.html.numbers import plural

EXPLAINED = (
    "Makes the keys of this run harder to quantize, as models known for collapsing are, while the full-precision "
    "model computes the same: queries are scaled the other way, and softmax ignores what all scores share. Every run "
    "proves on its last prompt tokens that the reference did not move and is refused otherwise, so all damage you see "
    "is the lanes' quantization."
)


def dials() -> list[Knob]:
    """One a field of Stress."""
    return knobs(Stress)


def dial_text(value: Any) -> Any:
    """What a dial's control shows: ``all``, ``2``, ``0, 3``; a list of one in brackets, which a count has not."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) if len(value) > 1 else str(list(value))
    return str(value) if isinstance(value, int) else value


def read_dial(dial: Knob, text: Any) -> Any:
    """A control's value as the field's; what is no value at all is handed on for the spec to refuse."""
    if text is None or text == "":
        return dial.default
    if not isinstance(text, str):
        return text
    found = parse_layers(text.strip().removeprefix("[").removesuffix("]"))
    counted = isinstance(dial.default, int) and text.strip().isascii() and text.strip().isdigit()
    return int(text) if counted else found


def stress_summary(stress: Stress) -> str:
    """What is stressed, for the closed form: ``on · keys × 8 on 2 pairs``; ``off`` where no key changes."""
    if not stress.active:
        return "off"
    words = []
    if stress.key_outlier_scale != 1:
        pairs = stress.key_outlier_pairs
        count = pairs if isinstance(pairs, int) else len(pairs)
        words.append(f"keys × {stress.key_outlier_scale:g} on {plural(count, 'pair')}")
    if stress.key_bias:
        words.append(f"bias {stress.key_bias:g}")
    for name, where in (("layer", stress.layers), ("KV head", stress.kv_heads)):
        if not isinstance(where, str):
            words.append(plural(len(where), name))
    return f"on · {', '.join(words)}"
