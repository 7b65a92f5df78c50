"""Text as a model reads it: the token ids of prompts, of conversations and of what follows them."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from kvq_core.errors import SpecError
from kvq_core.machine.owner import demand_wanted
from kvq_core.models.chat import render_each
from kvq_core.models.chat_turns import turn_ids
from kvq_core.spec import Message, Tool

AT_ONCE = 32  # prompts that are encoded together


class Reader:
    """What of a model its tokenizer and its chat template decide."""

    id: str
    model: Any
    tokenizer: Any

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer, as ``generate`` knows them."""
        eos = self.model.generation_config.eos_token_id
        eos = self.tokenizer.eos_token_id if eos is None and self.tokenizer is not None else eos
        return frozenset(eos if isinstance(eos, Iterable) else () if eos is None else (eos,))

    def render(self, prompt: str, system: str | None, chat: bool) -> list[int]:
        """Token ids of the prompt as the model sees it.

        ``system`` None keeps the chat template's own system message, "" asks for none. Raises SpecError where the
        model has no chat template, or one that refuses or leaves out what it is given.
        """
        (text,) = render_each(self.tokenizer, self.id, [(prompt, system)], chat)
        if isinstance(text, SpecError):
            raise text
        return list(self.tokenizer(text, add_special_tokens=not chat)["input_ids"])

    def render_each(self, prompts: Sequence[tuple[str, str | None]], chat: bool) -> list[list[int] | SpecError]:
        """``render`` of many prompts, each with its system message, encoded at once; the error where it would raise."""
        told: list[list[int] | SpecError] = []
        for at in range(0, len(prompts), AT_ONCE):
            demand_wanted()
            found = render_each(self.tokenizer, self.id, prompts[at : at + AT_ONCE], chat)
            texts = [text for text in found if isinstance(text, str)]
            ids = iter(self.tokenizer(texts, add_special_tokens=not chat)["input_ids"] if texts else ())
            told += [list(next(ids)) if isinstance(each, str) else each for each in found]
        return told

    def render_turns(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[tuple[list[int], bool]]:
        """A conversation's token ids in turns, each with whether the assistant answered them, see turns.turn_ids.

        Raises SpecError where the model has no chat template, or one that cannot go on from turn to turn.
        """
        return turn_ids(self.tokenizer, self.id, self.eos_ids, messages, tools)

    def encode(self, text: str) -> list[int]:
        """Token ids of text that follows something, no special tokens added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
