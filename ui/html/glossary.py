"""The words a reader may not know, each explained once; js/glossary.js shows it wherever one stands."""

from ui.html.escape import safe

MEANINGS = {
    "KLD": "How far the next-token distribution is from the full-precision cache's, in nats a token: the mean over all "
    "scored positions. 0 is the same; 0.01 is hard to notice; 0.1 and more changes what is written.",
    "flips": "Share of positions at which another token became the most probable one.",
    "bits": "Stored bits of an element, keys and values together: codes, scales, zero-points and what stays in full "
    "precision, counted from the tensors held. An fp16 cache has 16.",
    "bytes": "What the cache holds of this run's tokens, metadata included, as a share of an fp16 cache.",
    "own bytes": "What these tokens of the answer take by themselves, as a share of fp16. The newest stand in a lane's "
    "full-precision window, so that it is more than the share of the whole cache, which is mostly the prompt.",
    "noise floor": "The same cache rounded to fp16, or computed by another kernel: differences below it are no damage.",
    "tier": "Close, marginal or risky: where the mean KLD with its interval stands against fixed thresholds; flips, "
    "the 99th percentile and a text that repeats itself can only lower it.",
}


def term(name: str, shown: str = "") -> str:
    """A word of the glossary, explained where the pointer or the focus is on it."""
    assert name in MEANINGS
    return f'<span class="term" tabindex="0" data-term="{safe(name)}">{safe(shown or name)}</span>'


def hint(name: str, shown: str) -> str:
    """The same without a stop of its own for the keyboard: of what many cards say alike."""
    assert name in MEANINGS
    return f'<span data-term="{safe(name)}">{safe(shown)}</span>'


def glossary_html() -> str:
    """Every meaning once, out of sight."""
    meanings = "".join(f'<p data-means="{safe(name)}">{safe(text)}</p>' for name, text in MEANINGS.items())
    return f'<div id="glossary" hidden>{meanings}</div><div id="meaning" role="tooltip" hidden></div>'
