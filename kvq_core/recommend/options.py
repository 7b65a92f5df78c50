"""A study's lanes as they would be deployed: what each takes for what was asked, whether that fits, and its flags."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from kvq_core.analysis.deploy import of_rules
from kvq_core.errors import ModelError, SpecError, excerpt
from kvq_core.models import LoadedModel
from kvq_core.pipeline.lanes import rule_record
from kvq_core.recommend.constraints import Ask, WeightsFile
from kvq_core.recommend.evidence import Option
from kvq_core.shape import ModelRef, ModelShape
from kvq_core.sizing.count import CacheBytes, NotKnown, PlannedCache, fp16_bytes
from kvq_core.sizing.fit import LONGEST, MEMORIES
from kvq_core.sizing.layers import shape_of
from kvq_core.sizing.reserve import allowance
from kvq_core.sizing.weights import weights_in_memory
from kvq_core.spec import Lane

FP16 = Lane(label="fp16", method="fp16")
FP16_BITS = 16


@dataclass(frozen=True)
class FitPlace:
    """Where lanes are to fit: a model's shape and weights, and what was asked; ``model``: whose learned data is meant,
    None where that does not matter."""

    shape: ModelShape
    weights: WeightsFile
    ask: Ask
    model: ModelRef | None = None

    def option(self, lane: Lane) -> Option:
        found = self._held(self._planned(lane), self.ask.context)
        if isinstance(found, NotKnown):
            return Option(lane.label, lane_data(lane), None, refused=f"its bytes are not known: {found.reason}")
        option = Option(
            lane.label,
            lane_data(lane),
            found.tensors if found.reserved is None else found.reserved,
            reserved=found.reserved is not None,
            shared=found.shared,
            host_copy=found.host_copy,
            counted=(*found.from_data, *found.learned),
            fits=self._fits(found, self.ask.context),
        )
        flags, refused = self._flags(lane)
        unread = _unread(lane, self.ask.context) if flags else None
        return replace(option, flags=None if unread else flags, refused=refused, unread=unread)

    def longest(self, lane: Lane) -> int:
        """The longest context, in tokens, at which a lane fits; 0 where none does."""
        return self._longest(self._planned(lane), self.ask.context)

    def contexts(self, lane: Lane) -> dict[int, int | None]:
        """The longest context that a lane fits with in each of MEMORIES, in GB, at most the model's own; None where the
        weights are not known."""
        if self.weights.bytes is None:
            return dict.fromkeys(MEMORIES)
        most = self.shape.context or LONGEST
        given = {memory: replace(self.ask, memory=memory * 10**9, cache=None, bits=None) for memory in MEMORIES}
        planned = self._planned(lane)
        return {memory: replace(self, ask=ask)._longest(planned, most) for memory, ask in given.items()}

    def _planned(self, lane: Lane) -> PlannedCache:
        return PlannedCache(lane, self.shape, model=self.model)

    def _held(self, planned: PlannedCache, context: int) -> CacheBytes | NotKnown:
        """By the sequences asked for, all tokens of which are prompts."""
        return planned.bytes(context, context, self.ask.batch, self.ask.served)

    def _longest(self, planned: PlannedCache, most: int) -> int:
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            held = self._held(planned, middle)
            fits = isinstance(held, CacheBytes) and self._fits(held, middle)
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _fits(self, held: CacheBytes, context: int) -> bool | None:
        ask = self.ask
        if ask.memory is not None:
            weights = self.weights.bytes
            return None if weights is None else weights + held.taken <= allowance().left(ask.memory)
        if ask.cache is not None:
            return held.taken <= ask.cache
        return None if ask.bits is None else self._bits(held, context) <= ask.bits + 1e-9

    def _bits(self, held: CacheBytes, context: int) -> float:
        """An element of keys and values, states counted."""
        return FP16_BITS * held.tensors / (self.ask.batch * fp16_bytes(self.shape, context))

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
        nbytes, mended = sum(part.stat().st_size for part in parts), mended_part(parts)
        how = f"of its files; {mended}" if mended else "of its files"
        found.append(WeightsFile(file=str(file), bytes=nbytes, how=how, chosen=True))
    return sorted(found, key=lambda each: -(each.bytes or 0))


def mended_part(parts: Sequence[Path]) -> str | None:
    """What a file was mended for, where it is one that was: no study of the published file is about it."""
    from kvq_core.models.gguf.header import read_header  # it loads gguf, which an app that starts does not

    for part in parts:
        with suppress(ModelError):  # what is no whole GGUF file is refused where it is loaded
            if part.suffix == ".gguf" and (told := read_header(part).mended):
                return told
    return None


def model_shape(model: LoadedModel) -> ModelShape:
    return shape_of(model.model.config.to_dict())
