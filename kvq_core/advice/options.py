"""A study's lanes as they would be deployed: what each takes for what was asked, whether that fits, and its flags."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvq_core.advice.ask import Ask
from kvq_core.advice.choice import Option
from kvq_core.advice.cost import LaneCost
from kvq_core.advice.report import WeightsFile
from kvq_core.analysis.deploy import of_rules
from kvq_core.engines import engines
from kvq_core.errors import SpecError, excerpt
from kvq_core.models import LoadedModel
from kvq_core.pipeline.lanes import rule_record
from kvq_core.shape import ModelShape
from kvq_core.sizing.fit import LONGEST, MEMORIES
from kvq_core.sizing.layers import shape_of
from kvq_core.sizing.reserve import allowance
from kvq_core.sizing.weights import weights_in_memory
from kvq_core.spec import Lane

FP16 = Lane(label="fp16", method="fp16")


@dataclass(frozen=True)
class FitPlace:
    """Where lanes are to fit: a model's shape and weights, and what was asked."""

    shape: ModelShape
    weights: WeightsFile
    ask: Ask

    def option(self, lane: Lane) -> Option:
        cost = self._cost(lane)
        taken = cost.of(self.ask.context, self.ask.batch)
        option = Option(lane.label, lane_data(lane), *taken, fits=self._fits(taken.nbytes, cost))
        flags, refused = self._flags(lane)
        unread = _unread(lane, self.ask.context) if flags else None
        return replace(option, flags=None if unread else flags, refused=refused, unread=unread)

    def longest(self, lane: Lane) -> int:
        """The longest context, in tokens, at which a lane fits; 0 where none does."""
        return self._longest(self._cost(lane), self.ask.context)

    def contexts(self, lane: Lane) -> dict[int, int | None]:
        """The longest context that a lane fits with in each of MEMORIES, in GB, at most the model's own; None where the
        weights are not known."""
        if self.weights.bytes is None:
            return dict.fromkeys(MEMORIES)
        asks = (replace(self.ask, memory=memory * 10**9, cache=None, bits=None) for memory in MEMORIES)
        places, most = [replace(self, ask=ask) for ask in asks], self.shape.context or LONGEST
        return {memory: place._longest(place._cost(lane), most) for memory, place in zip(MEMORIES, places, strict=True)}

    def _cost(self, lane: Lane) -> LaneCost:
        engine = self.ask.engine if self.ask.engine in engines() else None
        return LaneCost(lane, self.shape, engine, self.ask.memory)

    def _longest(self, cost: LaneCost, most: int) -> int:
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            fits = self._fits(cost.of(middle, self.ask.batch).nbytes, cost)
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _fits(self, taken: int, cost: LaneCost) -> bool | None:
        ask = self.ask
        if ask.memory is not None:
            held = self.weights.bytes
            return None if held is None else held + taken <= allowance().left(ask.memory)
        if ask.cache is not None:
            return taken <= ask.cache
        return None if ask.bits is None else cost.bits(ask.context) <= ask.bits + 1e-9

    def _flags(self, lane: Lane) -> tuple[str | None, str | None]:
        """The command of the engine named, or why it has none; of the first that has the lane where none is named."""
        ways, refusals = of_rules([rule_record(rule) for rule in lane.every_rule], self.shape.kinds)
        if self.ask.engine is None:
            return (ways[0].how if ways else None), None
        found = next((way.how for way in ways if way.tool == self.ask.engine), None)
        why = next((each.reason for each in refusals if each.engine == self.ask.engine), "it has no such format")
        return found, None if found else f"{self.ask.engine} cannot have it: {why}"


def _unread(lane: Lane, context: int) -> str | None:
    """That a lane read its prompts in full precision where its engine reads them through the cache; None where it read
    them as that engine does, or says itself in which chunks."""
    if lane.prefill != "full":
        return None
    served = lane.model_copy(update={"prefill": "deployed"}).chunks
    if served is None or (served.own_chunk == "raw" and served.chunk >= context):  # all of it at once, as computed
        return None
    return f"{lane.label} as a server reads prompts, {served.chunk:,} tokens at a time: the study read them whole"


def lane_data(lane: Lane) -> dict[str, object]:
    """A lane as a spec has it, without its label."""
    told = lane.model_dump(mode="json", exclude_defaults=True)
    return {name: value for name, value in told.items() if name != "label"}


def own_weights(model: LoadedModel, given: str) -> WeightsFile:
    found = weights_in_memory(model.weights_bytes, sum(weight.numel() for weight in model.model.parameters()))
    return WeightsFile(file=given, bytes=found.nbytes, how=found.how, chosen=False)


def weights_files(files: Sequence[Path]) -> list[WeightsFile]:
    """Files or folders of weights to choose from, the largest first. Raises SpecError for one that is not there."""
    found = []
    for file in files:
        parts = [file] if file.is_file() else sorted(file.glob("*.safetensors")) or sorted(file.glob("*.gguf"))
        if not parts:
            raise SpecError(f"weights = {excerpt(str(file))} is no file, and no folder with weights.")
        nbytes = sum(part.stat().st_size for part in parts)
        found.append(WeightsFile(file=str(file), bytes=nbytes, how="of its files", chosen=True))
    return sorted(found, key=lambda each: -(each.bytes or 0))


def model_shape(model: LoadedModel) -> ModelShape:
    return shape_of(model.model.config.to_dict())
