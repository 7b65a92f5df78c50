"""One lane on token ids: the likelihood of a text that is read through its cache, and what it writes itself."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvq_core.engine.decode import Decode
from kvq_core.engine.lane_state import LaneState
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.errors import MethodError, SpecError
from kvq_core.models import LoadedModel
from kvq_core.spec import ComparisonSpec, Lane, parse_spec


@dataclass
class LaneScoring:
    """A model under one lane. ``score_chunk``: tokens of a scored text in a forward pass, see ComparisonSpec."""

    model: LoadedModel
    lane: Lane
    score_chunk: int = 1
    _held: SharedPrefill | None = field(init=False, default=None)  # of the newest context: choices of one task share it

    def likelihoods(self, context: list[int], follow: list[int]) -> tuple[Tensor, bool]:
        """Log-probability (tokens,) float64 of each token that follows a context, and whether all are the likeliest.

        The context enters the cache but for its last token; that and what follows are decoded, so that every token is
        chosen by an attention that reads the cache. Of a context of one token the first token that follows is chosen
        without one: there is nothing before it.

        Raises SpecError where both are longer than the model's context, MethodError where the lane fails.
        """
        self._check(len(context) + len(follow))
        prompt, fed = (context[:-1], context[-1:] + follow) if len(context) > 1 else (context, follow)
        rows = list[Tensor]()
        decode, state = self._entered(prompt, parse_spec({**self._asked, "continuation": "-"}), fed)
        if len(context) == 1:
            rows.append(decode.prompt_logits(state)[None])
        for _ in decode.steps(lambda _, lanes, __: rows.append(lanes[0].cpu()), None, lambda _: None):
            self._check_lane(state)
        logits, wanted = torch.cat(rows).double(), torch.tensor(follow)
        chosen = logits.log_softmax(-1).gather(-1, wanted[:, None])[:, 0]
        return chosen, bool((logits.argmax(-1) == wanted).all())

    def written(self, prompt: list[int], most: int, temperature: float = 0.0, seed: int = 0) -> Iterator[list[int]]:
        """What the lane writes after a prompt, ``most`` tokens at most: the tokens so far, a step a turn.

        Raises what ``likelihoods`` raises.
        """
        self._check(len(prompt) + most)
        spec = parse_spec({**self._asked, "max_new_tokens": most, "temperature": temperature, "seed": seed})
        decode, state = self._entered(prompt, spec)
        for _ in decode.steps(lambda _, __, ___: None, None, lambda _: None):
            self._check_lane(state)
            yield state.token_ids
            if state.finish:
                return
        yield state.token_ids

    @property
    def _asked(self) -> dict[str, object]:
        return {"prompt": "-", "lanes": (self.lane,), "score_chunk": self.score_chunk}

    def _entered(
        self, prompt: list[int], spec: ComparisonSpec, follow: list[int] | None = None
    ) -> tuple[Decode, LaneState]:
        """A run whose prompt is in the lane's cache."""
        if self._held is None or self._held.ids != prompt:
            self._held = SharedPrefill(self.model.stepping(), prompt)  # as comparisons read theirs
            for _ in self._held.run():
                pass
        decode = Decode(self.model, self._held, spec, list(spec.lanes), follow=follow)
        state = decode.states[0]
        for _ in (*decode.encode(), *decode.fill()):
            self._check_lane(state)
        self._check_lane(state)
        return decode, state

    def _check(self, tokens: int) -> None:
        if tokens > self.model.shape.context:
            raise SpecError(
                f"{tokens} tokens are more than the {self.model.shape.context} of context of {self.model.title}; take "
                "a task with shorter texts, or fewer new tokens."
            )

    def _check_lane(self, state: LaneState) -> None:
        if state.error:
            raise MethodError(f"{self.lane.title} failed: {state.error}")
