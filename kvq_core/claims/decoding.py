"""Claims about caches that change while the answer grows: the engine decodes the later tokens step by step."""

from pydantic import Field

from kvq_core.claims.measures import Context, LaneMetrics, Numbers
from kvq_core.claims.sample import Sample
from kvq_core.errors import MethodError
from kvq_core.pipeline.assemble import assemble
from kvq_core.pipeline.state import Run
from kvq_core.record.fields import Record
from kvq_core.spec import ComparisonSpec, Lane

METRICS = ("kld", "ppl_ratio", "key_bits", "value_bits")


class Decoding(LaneMetrics):
    """Lanes of one run that follows the text's own first ``tokens`` later tokens, one a step, from the prompt's cache:
    ``lane.metric``. Bits are those of the whole cache at the end."""

    KNOWN = METRICS
    lanes: dict[str, Lane]
    tokens: int = Field(ge=51)

    def on_text(self, context: Context, sample: Sample) -> Numbers:
        key = ("decoded", sample.name, self.tokens, *(f"{n}:{x.model_dump_json()}" for n, x in self.lanes.items()))
        if key not in context.shared:  # several claims look at one run
            context.shared[key] = _numbers(self._run(sample))
        return {name: context.shared[key][name] for name in self.names}

    def _run(self, sample: Sample) -> Record:
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
        run = Run("claims", sample.model, spec, sample.ids[:n])
        for _ in run.stages():
            pass
        return assemble(run)[0]


def _numbers(record: Record) -> Numbers:
    found: Numbers = {}
    for lane in record.lanes:
        if lane.metrics is None or lane.memory is None or lane.metrics.kld_mean is None:
            raise MethodError(lane.error or f"Lane {lane.label} was not measured.")
        found[f"{lane.label}.kld"] = lane.metrics.kld_mean
        found[f"{lane.label}.ppl_ratio"] = lane.metrics.ppl_ratio or float("nan")
        found[f"{lane.label}.key_bits"] = lane.memory.key_bits
        found[f"{lane.label}.value_bits"] = lane.memory.value_bits
    return found
