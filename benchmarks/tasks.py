"""How often a model is right on each suite of tasks in full precision: what a quantized cache can lose at most.

A suite of which a model gets less than half right is left out for that model: by studies, which read it from
presets/tasks. Prompts are those of seed 0 and the
suites' own options, answers greedy. Intervals are Wilson's, of 95 %.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from scipy.stats import binomtest

from benchmarks.measured import keep
from kvq_core.errors import SpecError
from kvq_core.models import LoadedModel, load, second
from kvq_core.spec import DEFAULT_MODEL
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.task_suites import LEFT_OUT
from kvq_core.studies.tasks import SUITES, judge, suite

HALF = 0.5  # of the answers right, below which a task is left out
PROMPTS = 20
AT_ONCE = 10  # prompts in a batch


def tokens_a_word(model: LoadedModel) -> float:
    """Of the filler text with its needles."""
    texts = [prompt.prompt for prompt in suite("needle", 20)]
    return sum(len(model.encode(text)) for text in texts) / sum(len(text.split()) for text in texts)


def prompt_ids(model: LoadedModel, prompt: StudyPrompt) -> list[int]:
    """As a comparison renders it. Raises SpecError where the model's chat template has no place for it."""
    if prompt.messages is None:
        return model.render(prompt.prompt, prompt.system, chat=True)
    return [id for turn, _ in model.render_turns(prompt.messages, prompt.tools) for id in turn]


def answered(model: LoadedModel, prompts: Sequence[StudyPrompt], new_tokens: int) -> Iterator[str]:
    """What ``generate`` of transformers writes in full precision, greedy; prompts are padded on the left."""
    every = [prompt_ids(model, prompt) for prompt in prompts]
    held, pad = model.model.config._attn_implementation, min(model.eos_ids)
    model.model.set_attn_implementation("sdpa")
    try:
        for start in range(0, len(every), AT_ONCE):
            some = every[start : start + AT_ONCE]
            width = max(map(len, some))
            ids = torch.tensor([[pad] * (width - len(one)) + one for one in some])
            mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in some])
            out = model.model.generate(
                ids, attention_mask=mask, do_sample=False, max_new_tokens=new_tokens, pad_token_id=pad
            )
            yield from model.tokenizer.batch_decode(out[:, width:], skip_special_tokens=True)
    finally:
        model.model.set_attn_implementation(held)


def rate(model: LoadedModel, name: str, n: int, **options: object) -> dict[str, Any]:
    """Of a suite: how many of ``n`` are right, with an interval, and why it is left out where it is."""
    prompts, new_tokens = suite(name, n, **options), SUITES[name].new_tokens
    if prompts[0].verifier is None:
        return {"left_out": None, "judged": False}
    try:
        texts = list(answered(model, prompts, new_tokens))
    except SpecError as error:
        return {"left_out": str(error), "judged": True}
    right = [judge(prompt.verifier or "", prompt.answer, text) for prompt, text in zip(prompts, texts, strict=True)]
    low, high = binomtest(sum(right), n).proportion_ci(method="wilson")
    share = sum(right) / n
    reason = f"{sum(right)} of {n} right in full precision, fewer than half" if share < HALF else None
    return {"left_out": reason, "judged": True, "n": n, "right": sum(right), "rate": share, "low": low, "high": high}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", default=[], help="a model id or file; may be given several times")
    parser.add_argument("--suite", action="append", default=[], choices=list(SUITES), help="one of them alone")
    parser.add_argument("--n", type=int, default=PROMPTS, help="prompts of each suite")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    for id in arguments.model or [DEFAULT_MODEL, second.SECOND_MODEL]:
        model = load(id)
        held = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.is_file() else {}
        found, tokens = held.get(model.id, {}).get("suites", {}), tokens_a_word(model)
        for name in arguments.suite or SUITES:
            found[name] = rate(model, name, arguments.n)
            print(f"{model.title}, {name}: {found[name]}", flush=True)
            ordered = {each: found[each] for each in SUITES if each in found}
            keep(arguments.out, model.id, {"title": model.title, "tokens_a_word": tokens, "suites": ordered})
            out = {each: told["left_out"] for each, told in ordered.items() if told["left_out"]}
            keep(LEFT_OUT, model.id, out)


if __name__ == "__main__":
    main()
