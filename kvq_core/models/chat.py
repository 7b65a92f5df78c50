"""Conversations through a model's chat template, which may refuse what it is given or leave it out."""

from collections.abc import Sequence
from typing import Any

from kvq_core.errors import SpecError
from kvq_core.models.template import check_size, run_template

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
