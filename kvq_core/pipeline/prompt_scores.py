"""What reading the prompt through their own caches does to lanes: its tokens, scored."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kvq_core.engine.lane_state import LaneState
from kvq_core.engine.prefill import Prefill
from kvq_core.engine.script import Segment, passes, scored_positions
from kvq_core.metrics.fidelity import Fidelity
from kvq_core.models import LoadedModel
from kvq_core.record.fields import PromptMetrics
from kvq_core.spec import ComparisonSpec, Lane

POSITIONS = 16  # scored at once, which bounds the logits held


def chunked(lane: Lane, tokens: int) -> list[Segment]:
    """The passes in which a prompt of ``tokens`` enters a lane's cache, none where it is read in full precision."""
    return passes([Segment(0, tokens)], lane.chunks)


def positions(spec: ComparisonSpec, tokens: int) -> list[int]:
    """Positions of the prompt that are scored: the same for all lanes that read it through their caches, after the
    longest first chunk of any; none where no lane does."""
    first = [lane.chunks.chunk for lane in spec.lanes if lane.chunks is not None and chunked(lane, tokens)]
    return scored_positions(spec.score_prompt, max(first), tokens) if first else []


def prefill_note(lane: Lane, tokens: int) -> str | None:
    """What a card says of how a lane read a prompt of ``tokens``; None of one that read it as papers do."""
    if lane.prefill == "full":
        return None
    if lane.chunks is None:
        return f"no engine reads prompts through {lane.build().title}'s cache: the prompt was read in full precision"
    if not chunked(lane, tokens):
        return f"the prompt fits into one chunk of {lane.chunks.chunk}, which is read in full precision"
    own = {"raw": "as computed", "stored": "as stored, in decoding too"}[lane.chunks.own_chunk]
    fitted = "; what is fitted, is on the whole prompt, which a server has not read by then"
    said = f"prompt read through its own cache in chunks of {lane.chunks.chunk}, the own chunk {own}"
    return said + (fitted if lane.chunks.fit == "prompt" and lane.build().quantizes else "")


@dataclass(frozen=True)
class PromptScores:
    """Scores of the lanes in ``states``, in that order, at ``positions`` of the prompt."""

    states: list[LaneState]
    positions: list[int]
    fidelity: Fidelity

    @classmethod
    def of(cls, model: LoadedModel, prefill: Prefill, running: list[LaneState], first: int) -> "PromptScores | None":
        """Score what the prefills left; ``first`` is the first new token. None where no lane was chunked."""
        states = [state for state in running if state.prompt_hidden is not None]
        if not states:
            return None
        follow = [*prefill.ids[1:], first]
        fidelity = Fidelity(len(states))
        hidden = torch.stack([state.prompt_hidden for state in states if state.prompt_hidden is not None])
        for start in range(0, len(prefill.scored), POSITIONS):
            now = slice(start, start + POSITIONS)
            reference, lanes = model.head(prefill.hidden[None, now])[0], model.head(hidden[:, now])
            fidelity(reference, lanes, [follow[p] for p in prefill.scored[now]])
        return cls(states, list(prefill.scored), fidelity)

    def metrics(self, state: LaneState) -> PromptMetrics | None:
        """Of a lane; None where it read the prompt in full precision."""
        if state not in self.states or state.own_errors is None:
            return None
        at = self.states.index(state)
        kld, same = self.fidelity.column("kld", at).double(), self.fidelity.column("same_top", at)
        ratio = (self.fidelity.column("nll", at) - self.fidelity.column("reference/nll")).double().mean().item()
        return PromptMetrics(
            n_scored=len(kld),
            first_position=self.positions[0],
            kld_mean=kld.mean().item(),
            kld_median=kld.quantile(0.5).item(),
            kld_p99=kld.quantile(0.99).item(),
            kld_max=kld.max().item(),
            flips=int((same == 0).sum()),
            flip_rate=(same == 0).double().mean().item(),
            ppl_ratio=math.exp(ratio),
            first_token_kld=kld[-1].item(),
            first_token_same=bool(same[-1]),
            own_key_error=state.own_errors[0],
            own_value_error=state.own_errors[1],
        )

    def arrays(self, state: LaneState) -> dict[str, Tensor]:
        """Of a lane, by their names in the record."""
        if state not in self.states:
            return {}
        at = self.states.index(state)
        return {f"prompt_{name}": self.fidelity.column(name, at) for name in ("kld", "nll", "same_top")}

    def run_arrays(self) -> dict[str, Tensor]:
        """What is no lane's own."""
        return {
            "prompt/positions": torch.tensor(self.positions, dtype=torch.int32),
            "prompt/nll": self.fidelity.column("reference/nll"),
        }
