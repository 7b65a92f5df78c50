"""Which layers are at risk and why, and the one sentence that says it."""

from collections.abc import Sequence

from kvq_core.inspection.report import CacheFacts, Cause, LayerFigures, Reason, Remedy, spans
from kvq_core.inspection.rules import Rules, published
from kvq_core.sizing.units import size_text

NOTHING = "No known risk found; measure."


def reasons_of(facts: CacheFacts, figures: Sequence[LayerFigures], rules: Rules) -> tuple[Reason, ...]:
    """A reason for every layer whose scores keys per token at 4 bits move by the threshold or more."""
    usual = _median([layer.constant for layer in figures if layer.constant is not None])
    found = []
    for layer in figures:
        if layer.score_error < rules.score_error.value:
            continue
        cured = layer.centred_score_error
        constant = cured is not None and layer.score_error >= rules.constant.value * cured
        cause: Cause = "constant" if constant else "outlier channels"
        bias, usual_bias = facts.layers[layer.layer].key_bias, facts.usual_bias
        if not constant:
            times = layer.key_outliers
        elif bias is not None and usual_bias:
            times = bias / usual_bias
        else:
            times = (layer.constant or 0) / usual if usual else 0.0
        found.append(Reason(layer=layer.layer, cause=cause, times=times, score_error=layer.score_error))
    return tuple(found)


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def sentence_of(
    facts: CacheFacts, reasons: Sequence[Reason], remedies: Sequence[Remedy], plain: float | None, rules: Rules
) -> str:
    """One plain sentence with its reason and the cheapest remedy that was measured."""
    if not reasons:
        return NOTHING
    parts = []
    for cause, says in (
        ("constant", "carry constants {} times the usual"),
        ("outlier channels", "have channels {} times the median one"),
    ):
        of_cause = [reason for reason in reasons if reason.cause == cause]
        if of_cause:
            layers = [reason.layer for reason in of_cause]
            noun = "layer" if len(layers) == 1 else "layers"
            parts.append(
                f"Keys of {noun} {_listed(layers)} {says.format(_range([reason.times for reason in of_cause]))}"
            )
    said = f"{'; '.join(parts)}: per-token and inner-grouped keys {_widths(remedies, plain, rules)} are at risk."
    return f"{said} {_remedy(remedies, plain, rules)}".strip()


def _listed(layers: Sequence[int]) -> str:
    *some, last = spans(layers).split(", ")
    return f"{', '.join(some)} and {last}" if some else last


def _range(times: Sequence[float]) -> str:
    low, high = (f"{value:.2g}" if value < 10 else f"{value:.0f}" for value in (min(times), max(times)))
    return low if low == high else f"{low} to {high}"


def _widths(remedies: Sequence[Remedy], plain: float | None, rules: Rules) -> str:
    """Under 8 bits, unless it was measured that 8 bits do not help."""
    wide = next((each.kld for each in remedies if each.name == "8-bit keys"), None)
    helps = plain is None or wide is None or plain >= rules.gain.value * wide
    return "under 8 bits" if helps else "even at 8 bits"


def _remedy(remedies: Sequence[Remedy], plain: float | None, rules: Rules) -> str:
    if plain is None or not remedies:
        return ""
    helping = [each for each in remedies if each.kld is not None and plain >= rules.gain.value * each.kld]
    if not helping:
        return "No remedy measured here helps enough."
    best = min(helping, key=lambda each: each.extra_bytes or 0)
    name = best.name[0].lower() + best.name[1:]
    return f"Cheapest remedy measured: {name}, {size_text(best.extra_bytes or 0)} (KLD {plain:.2g} to {best.kld:.2g})."


def known_of(*names: str) -> tuple[str, ...]:
    """What has been published about models of these names, each with its source."""
    return tuple(f"{each.family}: {each.said} ({each.source})" for each in published() if each.meant(*names))
