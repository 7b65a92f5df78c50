"""What of a layer, seen before any run, goes along with what its keys cost: rank correlations."""

import math

from kvq_core.advice.grounds import Grounds, LayerSigns
from kvq_core.spec.part import SpecPart

SIGNS = {
    "score_error": "scores moved by keys at 4 bits",
    "key_outliers": "largest key channel",
    "key_bias": "norm of the key bias",
    "key_norm_gain": "gain of the key norm",
}
FEWEST = 5  # layers that a correlation is told of


class Predicts(SpecPart):
    """Spearman's ``rho`` over layers between a sign and the KLD of keys in a format."""

    sign: str
    words: str
    format: str
    rho: float


def predicts(found: Grounds) -> tuple[Predicts, ...]:
    """Of every sign that is known of all layers and every format that was scored, the strongest first."""
    from scipy.stats import spearmanr

    made = []
    for format in dict.fromkeys(score.format for score in found.scores):
        klds = {s.layer: s.kld_mean for s in found.scores if s.format == format and s.tensor == "keys"}
        for name, words in SIGNS.items():
            pairs = [(value, klds[each.layer]) for each in found.signs if (value := _of(each, name)) is not None]
            if len(pairs) < max(FEWEST, len(klds)) or len({value for value, _ in pairs}) < 2:
                continue
            rho = float(spearmanr(*zip(*pairs, strict=True)).statistic)
            if math.isfinite(rho):
                made.append(Predicts(sign=name, words=words, format=format, rho=rho))
    return tuple(sorted(made, key=lambda each: -abs(each.rho)))


def _of(each: LayerSigns, name: str) -> float | None:
    value: float | None = getattr(each, name)
    return value
