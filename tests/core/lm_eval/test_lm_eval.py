"""lm-eval on a lane: its likelihoods are those of comparisons, its texts too, and its command line runs."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.papers import papers
from kvq_core.errors import KvqError
from kvq_core.lm_eval.scoring import LaneScoring
from kvq_core.models import LoadedModel
from kvq_core.pipeline.compare import compare_on
from kvq_core.record.events import Finished
from kvq_core.spec import ComparisonSpec, Lane, parse_lane
from tests.support.tiny_models import VOCABULARY, tiny

if not os.environ.get("KVQ_REQUIRE_BROWSER"):  # where continuous integration runs, it may not be missing
    pytest.importorskip("lm_eval")

TEXT = "the quick brown fox jumps over the lazy dog and sleeps in the warm sun until the evening comes around."
FOLLOW = " then it wakes up"
KIVI: dict[str, Any] = {"method": "kivi", "knobs": {"bits": 2, "residual_length": 32}}
LANES = {
    "kivi": KIVI,
    "chunks": {**KIVI, "prefill": {"chunk": 32}},
    "stored": {"method": "q4_0", "prefill": {"chunk": 32, "own_chunk": "stored"}},
}


def characters() -> PreTrainedTokenizerFast:
    """A tokenizer of one token a character, so that any part of a text is a part of its ids."""
    signs = ["<pad>", "<s>", "</s>", *map(chr, range(32, 32 + VOCABULARY - 3))]
    made = Tokenizer(models.WordLevel({sign: i for i, sign in enumerate(signs)}, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="module")
def small() -> LoadedModel:
    return replace(tiny("llama"), tokenizer=characters())


def compared(model: LoadedModel, lane: dict[str, Any], **fields: Any) -> Finished:
    """The same lane in a comparison."""
    spec = ComparisonSpec(chat=False, lanes=(parse_lane({**lane, "label": "x"}),), capture={"detail": "off"}, **fields)
    return next(event for event in compare_on(model, spec) if isinstance(event, Finished))


def plain(model: LoadedModel, ids: list[int], scored: int) -> torch.Tensor:
    """Log-probabilities of the last tokens, by transformers alone."""
    held = model.model.config._attn_implementation
    model.model.set_attn_implementation("sdpa")
    try:
        with torch.no_grad():
            logits = model.model(torch.tensor([ids])).logits[0, -scored - 1 : -1].double()
    finally:
        model.model.set_attn_implementation(held)
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids[-scored:])[:, None])[:, 0]


def test_an_fp16_lane_scores_as_transformers_does(small: LoadedModel) -> None:
    context, follow = small.encode(TEXT), small.encode(FOLLOW)
    found, _ = LaneScoring(small, Lane(method="fp16")).likelihoods(context, follow)
    assert torch.allclose(found, plain(small, context + follow, len(follow)), atol=2e-3)
    alone, _ = LaneScoring(small, Lane(method="fp16")).likelihoods([1], follow)
    assert torch.allclose(alone, plain(small, [1, *follow], len(follow)), atol=2e-3)


@pytest.mark.few(sample=1)
@pytest.mark.parametrize("name", LANES)
def test_likelihoods_are_those_of_a_comparison(small: LoadedModel, name: str) -> None:
    """Whose forced row is fed the context's last token and what follows."""
    found, _ = LaneScoring(small, parse_lane(LANES[name])).likelihoods(small.encode(TEXT), small.encode(FOLLOW))
    ran = compared(small, LANES[name], prompt=TEXT[:-1], continuation=TEXT[-1] + FOLLOW)
    assert torch.allclose(found, -ran.arrays["lane/0/nll"].double(), atol=1e-5)
    assert not torch.allclose(found, plain(small, small.encode(TEXT + FOLLOW), len(FOLLOW)), atol=1e-2)


def test_a_continuation_of_one_token_reads_the_cache(small: LoadedModel) -> None:
    """The case of multiple choice, which a pass over context and continuation together would leave as it was."""
    context, follow = small.encode(TEXT), small.encode("e")
    exact, lane = (LaneScoring(small, parse_lane(one)) for one in ({"method": "fp16"}, KIVI))
    assert lane.likelihoods(context, follow)[0] != pytest.approx(exact.likelihoods(context, follow)[0].item(), abs=1e-2)


@pytest.mark.slow
def test_what_is_likeliest_is_greedy(small: LoadedModel) -> None:
    scoring = LaneScoring(small, parse_lane(KIVI))
    context = small.encode(TEXT)
    first = max(range(VOCABULARY), key=lambda token: scoring.likelihoods(context, [token])[0].item())
    assert scoring.likelihoods(context, [first])[1]
    assert not scoring.likelihoods(context, [(first + 1) % VOCABULARY])[1]


@pytest.mark.slow
@pytest.mark.few(sample=1)
@pytest.mark.parametrize("name", LANES)
def test_what_a_lane_writes_is_what_it_writes_in_a_comparison(small: LoadedModel, name: str) -> None:
    *_, found = LaneScoring(small, parse_lane(LANES[name])).written(small.encode(TEXT), 24)
    ran = compared(small, LANES[name], prompt=TEXT, max_new_tokens=24)
    assert found == ran.record.lanes[0].token_ids
    assert ran.record.lanes[0].metrics.first_divergence is not None, "the lane writes its own text here"


@pytest.fixture
def known(small: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> type:
    """The model class, which loads the small model."""
    from kvq_core.lm_eval import model

    monkeypatch.setattr(model, "load", lambda id, revision: small)
    return model.KvqExplorer


def asked(*arguments: Any) -> Any:
    return SimpleNamespace(args=arguments)


@pytest.mark.slow
def test_requests_of_all_three_kinds(known: type, small: LoadedModel) -> None:
    lm = known(method="kivi", bits=2, residual_length=32, prefill_chunk=32)
    assert lm.scoring.lane.chunks.chunk == 32
    each, greedy = lm.scoring.likelihoods(small.encode(TEXT), small.encode(FOLLOW))
    [(total, said)] = lm.loglikelihood([asked(TEXT, FOLLOW)], disable_tqdm=True)
    assert (total, said) == (pytest.approx(each.sum().item()), greedy)

    [rolled] = lm.loglikelihood_rolling([asked(FOLLOW)], disable_tqdm=True)
    [(whole, _)] = lm.loglikelihood([asked("", FOLLOW)], disable_tqdm=True)
    assert rolled == pytest.approx(whole)

    [text] = lm.generate_until([asked(TEXT, {"until": [], "max_gen_toks": 12})], disable_tqdm=True)
    *_, tokens = lm.scoring.written(small.encode(TEXT), 12)
    assert text == small.tokenizer.decode(tokens, skip_special_tokens=True)
    stop = text[-1]
    [cut] = lm.generate_until([asked(TEXT, {"until": ["\x00", stop], "max_gen_toks": 12})], disable_tqdm=True)
    assert cut == text[: text.index(stop)] != text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"method": "kivvi"}, "kivvi.* Did you mean 'kivi'"),
        ({"method": "kivi", "bitz": 2}, "bitz"),
        ({"method": "kivi", "batch_size": 8}, "batch_size = 8 is not allowed; requests run one after the other"),
        ({"method": "kivi", "device": "cuda:7"}, "device = 'cuda:7' is not allowed; .* is on cpu here: leave it out"),
        ({"method": "commvq"}, "CommVQ .*codebooks"),
    ],
)
def test_a_lane_that_cannot_be_is_refused_in_one_line(known: type, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(KvqError, match=why) as refused:
        known(**arguments).loglikelihood([asked(TEXT, FOLLOW)], disable_tqdm=True)
    assert "\n" not in str(refused.value)


def test_samples_of_one_context_differ_and_are_the_same_again(known: type) -> None:
    lm = known()
    sampled = asked(TEXT, {"do_sample": True, "temperature": 1.0, "max_gen_toks": 8})
    first, second = lm.generate_until([sampled, sampled], disable_tqdm=True)
    assert first != second
    assert lm.generate_until([sampled, sampled], disable_tqdm=True) == [first, second]


@pytest.mark.slow
def test_a_context_that_is_too_long_loses_its_beginning_and_that_is_told(known: type, logged: list[str]) -> None:
    lm = known()
    room = lm.max_length - len(FOLLOW)
    long, kept = ("a" * (2 * room))[: -len(TEXT)] + TEXT, ("a" * room)[: -len(TEXT)] + TEXT
    one, other = lm.loglikelihood([asked(long, FOLLOW), asked(kept, FOLLOW)], disable_tqdm=True)
    assert one == other
    assert "1 of 2 contexts are longer than the model's 1024 tokens leave room for" in "".join(logged)
    logged.clear()
    options = {"max_gen_toks": len(FOLLOW)}
    one, other = lm.generate_until([asked(long, options), asked(kept, options)], disable_tqdm=True)
    assert one == other
    assert "1 of 2 contexts" in "".join(logged)


def test_a_continuation_without_tokens_is_refused(known: type) -> None:
    with pytest.raises(KvqError, match="The continuation '' has no token of its own after its context"):
        known().loglikelihood([asked(TEXT, "")], disable_tqdm=True)


def test_options_that_change_a_text_are_not_dropped(known: type) -> None:
    lm = known()
    with pytest.raises(KvqError, match="max_new_tokens = 0 is not allowed"):
        lm.generate_until([asked("a b", {"max_gen_toks": 0})], disable_tqdm=True)
    with pytest.raises(KvqError, match="generation option 'top_p' is not allowed; allowed: until"):
        lm.generate_until([asked("a b", {"do_sample": True, "temperature": 1.0, "top_p": 0.5})], disable_tqdm=True)
    with pytest.raises(KvqError, match="1,?024"):
        lm.scoring.likelihoods([5] * 1020, [5] * 5)


TASK = """
task: kvq_sample
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
target_delimiter: " "
metric_list: [{{metric: acc}}]
"""


@pytest.mark.long("programs", sample=0)
@pytest.mark.slow
def test_its_command_line_runs_a_task_of_a_local_file(
    known: type, small: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvq_core.lm_eval.__main__ import main

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    choices = ["wakes up", "sleeps on", "runs off"]
    scoring = LaneScoring(small, parse_lane(KIVI))
    rows = []
    for start in (0, 4, 10):
        each = [scoring.likelihoods(small.encode(TEXT[start:]), small.encode(f" {c}"))[0].sum() for c in choices]
        best = max(range(3), key=lambda i: each[i].item())
        rows.append({"text": TEXT[start:], "choices": choices, "label": best if start else (best + 1) % 3})
    (tmp_path / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "kvq_sample.yaml").write_text(TASK.format(file=tmp_path / "rows.json"))
    task = ["--tasks", "kvq_sample", "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")]
    lane = ["--model", "kvq-explorer", "--model_args", "method=kivi,bits=2,residual_length=32"]
    monkeypatch.setattr(sys, "argv", ["kvq_core.lm_eval", *lane, *task])
    assert main() == 0
    [file] = (tmp_path / "out").rglob("results*.json")
    assert json.loads(file.read_text())["results"]["kvq_sample"]["acc,none"] == pytest.approx(2 / 3)

    monkeypatch.setattr(sys, "argv", ["kvq_core.lm_eval", "--model", "kvq-explorer", "--model_args", "bitz=2", *task])
    assert main() == 2


@pytest.mark.slow
def test_the_papers_tables_name_tasks_that_lm_eval_has() -> None:
    import lm_eval
    from lm_eval.tasks import TaskManager

    named = {task for each in papers()["tables"] for task in each["tasks"]}
    # all of lm-eval's folders take 8 s to read
    read = "bbh gpqa gsm8k hellaswag hendrycks_math ifeval infinitebench longbench mathqa mmlu_pro piqa ruler".split()
    folders = [Path(lm_eval.__file__).parent / "tasks" / folder for folder in read]
    assert named <= set(TaskManager(include_path=folders, include_defaults=False).all_tasks)


def test_the_real_models_likelihoods_are_those_of_a_comparison(smollm: LoadedModel) -> None:
    text = (TEXT + " ") * 3
    fed = " It was"
    found, _ = LaneScoring(smollm, parse_lane(KIVI)).likelihoods(
        smollm.encode(text + fed), smollm.encode(" a warm day")
    )
    ran = compared(smollm, KIVI, prompt=text + " It", continuation=" was a warm day")
    assert torch.allclose(found, -ran.arrays["lane/0/nll"].double(), atol=1e-4)
    exact, _ = LaneScoring(smollm, Lane(method="fp16")).likelihoods(
        smollm.encode(text + fed), smollm.encode(" a warm day")
    )
    assert torch.allclose(exact, plain(smollm, smollm.encode(text + fed + " a warm day"), 3), atol=2e-2)
