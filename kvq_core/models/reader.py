"""Text as a model reads it: the token ids of prompts, of conversations and of what follows them."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from kvq_core.errors import SpecError
from kvq_core.machine.owner import demand_wanted
from kvq_core.models.chat_turns import turn_ids
from kvq_core.models.template import check_size, run_template
from kvq_core.spec import Message, Tool

_PLAIN = "set chat = false to send the prompt as it is"
_WITHOUT_SYSTEM = f"leave system out and put its text into the prompt, or {_PLAIN}"


def conversation(tokenizer: Any, model: str, prompt: str, system: str | None) -> str:
    """A prompt as the model's chat template puts it, ready to be answered; ``system`` None keeps the template's own
    system message, "" asks for none.

    Raises SpecError where the template refuses the conversation, or leaves out a text that it is given.
    """
    texts = {"user": prompt} if system is None else {"system": system, "user": prompt}
    messages = [{"role": role, "content": text} for role, text in texts.items()]
    try:
        rendered = str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    except MemoryError:
        raise
    except Exception as error:  # a template is a program of the model's, and may fail in any way
        if system == "":  # where a system message is refused there is none
            return conversation(tokenizer, model, prompt, None)
        said = " ".join(str(error).split())[:200].rstrip(" .") or type(error).__name__
        what = _WITHOUT_SYSTEM if system else _PLAIN
        raise SpecError(f"The chat template of {model} refuses this conversation: {said}. To go on, {what}.") from None
    dropped = [role for role, text in texts.items() if text.strip() not in rendered]  # templates trim
    if dropped:
        what = _WITHOUT_SYSTEM if dropped == ["system"] else _PLAIN
        raise SpecError(
            f"The chat template of {model} leaves out the {dropped[0]} text or changes it. To go on, {what}."
        )
    return rendered


def render_each(
    tokenizer: Any, model: str, prompts: Sequence[tuple[str, str | None]], chat: bool
) -> Sequence[str | SpecError]:
    """The texts that a model reads of prompts, each with its system message: with its template or, without ``chat``, as
    they are; the error where it reads none. Raises SpecError where the template takes too much."""
    if not chat:
        return [prompt for prompt, _ in prompts]
    if not getattr(tokenizer, "chat_template", None):
        return [SpecError(f"{model} has no chat template; set chat = false to send the prompt as it is.")] * len(
            prompts
        )
    return run_template(lambda: [_rendered(tokenizer, model, *each) for each in prompts], model, len(prompts) // 8)


def _rendered(tokenizer: Any, model: str, prompt: str, system: str | None) -> str | SpecError:
    try:
        text = conversation(tokenizer, model, prompt, system)
        check_size([text], model)
        return text
    except SpecError as error:
        return error


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
