"""How singular values decay and what error follows (SVDq, Section 4.3), and how heavy tails are (QAQ, Figure 2c)."""

import math

import numpy as np
from torch import Tensor

from kvq_core.capture.spectra import singular_values
from kvq_core.claims.lanes import ClaimLane, ReadBack
from kvq_core.claims.measures import Context, Measure, Numbers
from kvq_core.claims.sample import Sample

GROUPS = 8  # of latent channels, in the paper's schedule (8 - i) 2b/7


class Decay(Measure):
    """The exponential that fits the singular values of the prompt's keys (centred, before RoPE, heads of a layer side
    by side), and the error that SVDq's Section 4.3 predicts from it.

    ``rho``: decay a channel (Eq. 9) by least squares on the logarithms, ``r_squared`` its coefficient of determination.
    ``predicted``: the paper's ratio of SVDq's error to that of direct quantization at a mean of ``bits``, the widths
    falling from 2 ``bits`` to 0; ``measured``: that of lane ``latent`` to the geometric mean of the ``direct`` lanes.
    ``limit``: the paper's approximation 2^(b - b_1) of the former. All but the last are means over layers.
    """

    bits: float
    latent: ClaimLane
    direct: tuple[ClaimLane, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return ("rho", "r_squared", "predicted", "measured", "limit")

    def on_text(self, context: Context, sample: Sample) -> Numbers:
        joined = sample.keys_before_rope[..., : sample.prompt, :].transpose(1, 2).flatten(2)
        rho, r_squared = decay(singular_values(joined - joined.mean(1, keepdim=True)))
        logs = [np.log(_errors(context.hold(sample, lane), sample)) for lane in self.direct]
        measured = _errors(context.hold(sample, self.latent), sample) / np.exp(np.mean(logs, axis=0))
        predicted = [error_ratio(r, joined.shape[-1], self.bits) for r in rho]
        return {
            "rho": float(rho.mean()),
            "r_squared": float(r_squared.mean()),
            "predicted": float(np.mean(predicted)),
            "measured": float(measured.mean()),
            "limit": 2**-self.bits,
        }


def decay(values: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Of each row of singular values (layers, d): rho of the fit c exp(-rho j), and the fit's R squared."""
    from scipy.stats import linregress  # a second's import that most commands never need

    logs = values.double().clamp_min(1e-12).log().numpy()
    fits = [linregress(np.arange(row.size), row) for row in logs]
    return np.array([-fit.slope for fit in fits]), np.array([fit.rvalue**2 for fit in fits])


def error_ratio(rho: float, channels: int, bits: float) -> float:
    """Root of E(SVDq's squared error) / E(direct quantization's) at a mean of ``bits`` (Section 4.3)."""
    alpha = channels * rho / 4 - 2 * bits / 7 * math.log(4)
    return math.sqrt(sum(math.exp(-alpha * i) for i in range(GROUPS)) / 4**bits)


def _errors(held: ReadBack, sample: Sample) -> np.ndarray:
    """Norm of each layer's error of the keys."""
    error: np.ndarray = (held.keys - sample.keys[..., : sample.prompt, :]).flatten(1).double().norm(dim=1).cpu().numpy()
    return error


class Tails(Measure):
    """Tails of the prompt's keys and values, each layer's less their mean and over their standard deviation: share of
    the elements beyond ``sigmas`` of it, and excess kurtosis (0 for a normal distribution). Means over layers."""

    sigmas: float

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{kind}.{name}" for name in ("beyond", "kurtosis") for kind in ("keys", "values"))

    def on_text(self, context: Context, sample: Sample) -> Numbers:
        from scipy.stats import kurtosis  # a second's import that most commands never need

        found: Numbers = {}
        for kind, x in (("keys", sample.keys), ("values", sample.values)):
            flat = x[..., : sample.prompt, :].flatten(1).double().cpu().numpy()
            scaled = (flat - flat.mean(1, keepdims=True)) / flat.std(1, keepdims=True)
            found[f"{kind}.beyond"] = float((np.abs(scaled) > self.sigmas).mean())
            found[f"{kind}.kurtosis"] = float(kurtosis(scaled, axis=1).mean())
        return {name: found[name] for name in self.names}
