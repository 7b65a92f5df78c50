"""What is told of a batch while it decodes: text pieces and per-token measures, for Step events."""

from kvq_core.models.text import Pieces
from kvq_core.pipeline.batch import Batch
from kvq_core.record.events import LaneProgress
from kvq_core.spec import Lane


def waiting(lane: Lane) -> LaneProgress:
    """Of a lane whose batch has not begun."""
    return LaneProgress(lane.label, [], [], [], None)


class BatchProgress:
    """What has been told of a batch so far."""

    def __init__(self, batch: Batch):
        self._batch = batch
        self._reference = Pieces(batch.model.tokenizer)
        self._pieces = [Pieces(batch.model.tokenizer) for _ in batch.decode.states]
        self._kld: list[list[float]] = [[] for _ in batch.running]
        self._same: list[list[bool]] = [[] for _ in batch.running]
        self._scored = 0

    @property
    def reached(self) -> int:
        """Tokens of the longest text; where the reference answers first, of its answer and of the lanes' half each."""
        decode = self._batch.decode
        own = max([len(decode.token_ids), *(len(state.token_ids) for state in decode.states)])
        return own if decode.written is decode.token_ids else (len(decode.written) + own) // 2

    @property
    def reference(self) -> list[str]:
        """Pieces of the reference's text; all of it from the second batch on."""
        return list(self._reference.extend((self._batch.first or self._batch).decode.written))

    def lanes(self) -> list[LaneProgress]:
        """Of every lane of the batch, the noise floor left out."""
        fidelity = self._batch.fidelity
        if fidelity.n_scored > self._scored:
            for at in range(len(self._batch.running)):
                self._kld[at] += fidelity.latest("kld", at, self._scored)
                self._same[at] += map(bool, fidelity.latest("same_top", at, self._scored))
            self._scored = fidelity.n_scored
        return [self._lane(i) for i in range(len(self._batch.lanes))]

    def _lane(self, index: int) -> LaneProgress:
        state = self._batch.decode.states[index]
        pieces = list(self._pieces[index].extend(state.token_ids))
        if state not in self._batch.running:
            return LaneProgress(state.lane.label, pieces, [], [], None, state.error)
        at = self._batch.running.index(state)
        return LaneProgress(
            state.lane.label,
            pieces,
            list(self._kld[at]),
            list(self._same[at]),
            state.first_divergence,
            state.error,
            state.finish,
        )
