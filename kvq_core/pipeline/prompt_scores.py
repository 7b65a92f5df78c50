"""What reading the prompt, or earlier turns, through their own caches does to lanes: its tokens, scored."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kvq_core.engine.fidelity import Fidelity
from kvq_core.engine.lane_state import LaneState
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.script import Script, Segment
from kvq_core.models import LoadedModel
from kvq_core.models.head import POSITIONS
from kvq_core.record.prompt_fields import PromptMetrics, TurnMetrics
from kvq_core.spec import ComparisonSpec, Lane


def prompt_positions(spec: ComparisonSpec, script: Script) -> list[int]:
    """Positions of the prompt that are scored: the same for all lanes that read it through their caches, after the
    longest first chunk of any, in a conversation after its first turn; none where no lane does."""
    first = [_first(lane, script) for lane in spec.lanes if script.passes(lane.chunks)]
    how = spec.score_prompt if spec.reference is None else "none"
    return script.scored(how, max(first)) if first else []


def turn_positions(spec: ComparisonSpec, script: Script) -> list[int]:
    """Positions of given answers that are scored together with the generated one."""
    return script.answered if spec.score_turns == "all" else []


def _first(lane: Lane, script: Script) -> int:
    end, turns = script.segments[0].end, len(script.segments) > 1  # of turns, every row reads later ones itself
    return end if turns or lane.chunks is None else min(end, lane.chunks.chunk)


def prefill_note(lane: Lane, script: Script) -> str | None:
    """What a card says of how a lane read the prompt; None of one that read it as papers do."""
    turns = len(script.segments) > 1
    if lane.prefill == "full":
        return "later turns read the earlier ones from this cache; fitted on the first turn" if turns else None
    if lane.chunks is None:
        return f"no engine reads prompts through {lane.title}'s cache: the prompt was read in full precision"
    if not script.passes(lane.chunks):
        return f"the prompt fits into one chunk of {lane.chunks.chunk}, which is read in full precision"
    own = {"raw": "as computed", "stored": "as stored, in decoding too"}[lane.chunks.own_chunk]
    fitted = "; what is fitted, is on the whole prompt, which a server has not read by then"
    said = f"prompt read through its own cache in chunks of {lane.chunks.chunk}, the own chunk {own}"
    return said + (fitted if lane.chunks.fit == "prompt" and lane.quantizes else "")


@dataclass(frozen=True)
class Scores:
    """Scores of the lanes in ``states``, in that order, at ``positions`` of the prompt."""

    states: list[LaneState]
    positions: list[int]
    fidelity: Fidelity

    @classmethod
    def of(
        cls,
        model: LoadedModel,
        prefill: SharedPrefill,
        running: list[LaneState],
        positions: list[int],
        first: int,
        given: Tensor | None = None,
    ) -> "Scores | None":
        """Score what the prefills left; ``first`` is the first new token, ``given`` the logits (1, vocabulary) of
        another reference at the last position, the only one that is scored then. None where there is nothing to score.
        """
        states = [state for state in running if state.prompt_hidden is not None]
        if not states or not positions:
            return None
        follow = [*prefill.ids[1:], first]
        rows = {p: i for i, p in enumerate(prefill.scored)}
        fidelity = Fidelity(len(states))
        hidden = torch.stack([state.prompt_hidden for state in states if state.prompt_hidden is not None])
        for start in range(0, len(positions), POSITIONS):
            now = positions[start : start + POSITIONS]
            at = [rows[p] for p in now]
            own, lanes = model.head(prefill.hidden[None, at])[0], model.head(hidden[:, at])
            fidelity(own if given is None else given.to(own.device), lanes, [follow[p] for p in now])
        return cls(states, positions, fidelity)

    def column(self, name: str, state: LaneState) -> Tensor:
        """Of a lane, or of the reference where the name says so: (positions, ...)."""
        own = None if name.startswith("reference/") else self.states.index(state)
        return self.fidelity.column(name, own)

    def prompt_metrics(self, state: LaneState) -> PromptMetrics | None:
        """Of a lane; None where it read the prompt in full precision."""
        if state not in self.states or state.own_errors is None:
            return None
        kld, same = self.column("kld", state).double(), self.column("same_top", state)
        ratio = (self.column("nll", state) - self.column("reference/nll", state)).double().mean().item()
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

    def turn_metrics(self, state: LaneState, script: Script) -> list[TurnMetrics]:
        """Of each given answer under a lane, in order."""
        if state not in self.states:
            return []
        lengths = [segment.end - segment.start for segment, _ in self._answered(script)]
        columns = (self.by_answer("kld", state, script), self.by_answer("same_top", state, script))
        return [turn(length, kld.double(), same) for length, kld, same in zip(lengths, *columns, strict=True)]

    def by_answer(self, name: str, state: LaneState, script: Script) -> list[Tensor]:
        """A lane's column (positions, ...) of each given answer, in order."""
        if state not in self.states:
            return []
        column = self.column(name, state)
        return [column[own] for _, own in self._answered(script)]

    def _answered(self, script: Script) -> list[tuple[Segment, Tensor]]:
        """The given answers that are scored, and which of the positions are theirs."""
        at = torch.tensor(self.positions)
        found = [(segment, (at >= segment.start) & (at < segment.end)) for segment in script.segments]
        return [(segment, own) for segment, own in found if segment.answered and own.any()]

    def arrays(self, state: LaneState, kind: str) -> dict[str, Tensor]:
        """Of a lane, by their names in the record; ``kind``: prompt or turns."""
        if state not in self.states:
            return {}
        return {f"{kind}_{name}": self.column(name, state) for name in ("kld", "nll", "same_top")}

    def run_arrays(self, kind: str) -> dict[str, Tensor]:
        """What is no lane's own."""
        return {
            f"{kind}/positions": torch.tensor(self.positions, dtype=torch.int32),
            f"{kind}/nll": self.fidelity.column("reference/nll"),
        }


def turn(tokens: int, kld: Tensor, same: Tensor) -> TurnMetrics:
    """Figures of one answer of ``tokens``, from what was scored of it."""
    flips = same == 0
    return TurnMetrics(
        tokens=tokens,
        n_scored=len(kld),
        kld_mean=kld.mean().item(),
        kld_p99=kld.double().quantile(0.99).item(),
        flips=int(flips.sum()),
        flip_rate=flips.double().mean().item(),
    )
