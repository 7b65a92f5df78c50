"""Claims about caches that change while the answer grows: the engine decodes the later tokens step by step."""

from collections.abc import Mapping
from typing import cast

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from kvq_core.claims.measures import Context, LaneMetrics, Numbers
from kvq_core.claims.sample import Sample
from kvq_core.engine.script import Script
from kvq_core.errors import MethodError
from kvq_core.pipeline.assemble import assemble
from kvq_core.pipeline.state import Run
from kvq_core.record.fields import Record
from kvq_core.spec import MAX_LANES, ComparisonSpec, Lane

METRICS = ("kld", "kld_slope", "ppl_ratio", "key_bits", "value_bits", "compression")
LONG = 100  # generated tokens that a slope is told for


class Decoding(LaneMetrics):
    """Lanes of one run that follows the text's own first ``tokens`` later tokens, one a step, from the prompt's cache:
    ``lane.metric``. Bits are those of the whole cache at the end, ``compression`` is 16 over their mean for keys and
    values. ``kld_slope``: by how many nats the divergence of a prediction rises over 100 tokens, least squares."""

    KNOWN = METRICS
    lanes: dict[str, Lane] = Field(max_length=MAX_LANES)
    tokens: int = Field(ge=51)

    def on_text(self, context: Context, sample: Sample) -> Numbers:
        found = self._all(context, sample)
        return {name: found[name] for name in self.names}

    def _all(self, context: Context, sample: Sample) -> Numbers:
        key = ("decoded", sample.name, self.tokens, *(f"{n}:{x.model_dump_json()}" for n, x in self.lanes.items()))
        if key not in context.shared:  # several claims look at one run
            context.shared[key] = numbers_of(*self._run(sample))
        return cast(Numbers, context.shared[key])

    def _run(self, sample: Sample) -> tuple[Record, Mapping[str, ArrayLike]]:
        n = sample.prompt
        follow = str(sample.model.tokenizer.decode(sample.ids[n : n + self.tokens]))
        spec = ComparisonSpec.model_validate(
            {
                "model": sample.model.id,
                "prompt": sample.name,
                "chat": False,
                "continuation": follow,
                "lanes": [lane.model_copy(update={"label": name}) for name, lane in self.lanes.items()],
                "capture": {"detail": "off"},
            }
        )
        run = Run("claims", sample.model, spec, Script.of_prompt(sample.ids[:n]))
        for _ in run.stages():
            pass
        return assemble(run)


class Lossless(Decoding):
    """As Decoding, and ``lossless.compression``: the largest compression of a lane whose perplexity is at most
    ``limit`` times the reference's; 1, that of fp16, where no lane keeps it."""

    limit: float = Field(ge=1)

    @property
    def names(self) -> tuple[str, ...]:
        return ("lossless.compression", *super().names)

    def on_text(self, context: Context, sample: Sample) -> Numbers:
        found = self._all(context, sample)
        kept = [found[f"{lane}.compression"] for lane in self.lanes if found[f"{lane}.ppl_ratio"] <= self.limit]
        whole = {**found, "lossless.compression": max(kept, default=1.0)}
        return {name: whole[name] for name in self.names}


def numbers_of(record: Record, arrays: Mapping[str, ArrayLike]) -> Numbers:
    """Every metric of every lane of a run. Raises MethodError where a lane was not measured."""
    found: Numbers = {}
    for index, lane in enumerate(record.lanes):
        if lane.metrics is None or lane.memory is None or lane.metrics.kld_mean is None:
            raise MethodError(lane.error or f"Lane {lane.label} was not measured.")
        key_bits, value_bits = lane.memory.key_bits, lane.memory.value_bits
        numbers = {
            "kld": lane.metrics.kld_mean,
            "kld_slope": slope(arrays[f"lane/{index}/kld"]),
            "ppl_ratio": lane.metrics.ppl_ratio or float("nan"),
            "key_bits": key_bits,
            "value_bits": value_bits,
            "compression": 32 / (key_bits + value_bits),
        }
        found |= {f"{lane.label}.{name}": value for name, value in numbers.items()}
    return found


def slope(series: ArrayLike) -> float:
    """Rise of a series over LONG of its steps, by least squares."""
    from scipy.stats import linregress  # a second's import that most commands never need

    values = np.asarray(series, dtype=np.float64)
    return float(LONG * linregress(np.arange(len(values)), values).slope)
