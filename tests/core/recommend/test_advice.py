"""Advice on studies made by hand, of which the right answer is known."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvq_core.analysis.plans import lane_of, shape_of
from kvq_core.errors import SpecError
from kvq_core.recommend.answer import Study, advice_of
from kvq_core.recommend.constraints import Advice, Ask, Tolerance, WeightsFile, engine_of
from kvq_core.recommend.evidence import Option
from kvq_core.recommend.html import as_html
from kvq_core.recommend.markdown import as_markdown
from kvq_core.recommend.options import FitPlace, _unread
from kvq_core.record.shipped import find_run
from kvq_core.sizing.reserve import allowance
from kvq_core.spec import Lane
from kvq_core.studies.pairs import pairs

GB = 10**9
SIZES = {"small": 250, "middle": 300, "large": 530, "fp16": 1000}  # bytes of a cache
WEIGHTS = WeightsFile(file="m", bytes=4 * GB, how="of its files", chosen=False)


def rows(lane: str, klds: Any, **more: Any) -> list[dict[str, Any]]:
    """A lane's; a prompt has 100 positions of the same KLD, and nothing flips."""
    base = {"model": "M", "lane": lane, "group": "", "error": None, "prompt_tokens": 300, "scored": 100}
    counts = {"flips": 0, "near_tie_flips": 0, "correct": None, "reference_correct": None, "repeats": False}
    found = []
    for at, kld in enumerate(klds):
        own = {name: value[at] for name, value in more.items()}
        tokens = None if np.isnan(kld) else np.full(100, kld)
        found.append({**base, **counts, "prompt": f"p{at}", "run": f"r{at}", "kld_mean": kld, "kld": tokens, **own})
    return found


def noisy(mean: float, prompts: int = 12, seed: int = 0, spread: float = 0.3) -> np.ndarray:
    drawn = np.exp(np.random.default_rng(seed).normal(0, spread, prompts))
    return mean * drawn / drawn.mean()


def option(label: str, **changes: Any) -> Option:
    made = Option(label, {"method": label}, SIZES[label], fits=True, flags=f"serve --cache {label}")
    return replace(made, **changes)


def asked(found: list[dict[str, Any]], options: list[Option], tolerance: str = "close", **more: Any) -> Advice:
    study = Study("s", "M", pd.DataFrame(found), options, option("fp16"), WEIGHTS, longest=348)
    study = replace(
        study, **{name: more.pop(name) for name in ("weights", "nearest_context", "windows") if name in more}
    )
    return advice_of(study, Ask(Tolerance.parse(tolerance), **more))


def test_the_tokens_in_flight_are_told_where_layers_slide():
    given = [*rows("small", noisy(0.05))], [option("small")]
    found = asked(*given, engine="vLLM", windows=True, batched_tokens=512)
    assert found.batched_tokens == 512 and any("512" in each for each in found.untested)
    assert asked(*given, engine="vLLM", windows=True).batched_tokens == 2048
    assert asked(*given, engine="vLLM").batched_tokens is None
    assert asked(*given, engine="llama.cpp", windows=True).batched_tokens is None


def test_a_clear_winner_is_the_smallest_lane_within_the_tolerance():
    found = asked(
        [*rows("small", noisy(0.05)), *rows("middle", noisy(0.002, seed=1)), *rows("large", noisy(0.0001, seed=2))],
        [option("large"), option("small"), option("middle")],
    )
    assert (found.kind, found.label, found.sure, found.runner_up) == ("one", "middle", True, "large")
    assert found.agreement == 1.0 and found.flags == "serve --cache middle" and found.lane == {"method": "middle"}
    assert "1.77 times" in (found.separates or "") and "large is closer" in (found.separates or "")
    assert [each.label for each in found.front] == ["small", "middle", "large"], "smallest first"
    assert [each.holds for each in found.front] == [False, True, True] and all(each.front for each in found.front)
    worst = noisy(0.002, seed=1)
    assert found.worst[0].prompt == f"p{worst.argmax()}" and found.worst[0].link == f"?run=r{worst.argmax()}"
    assert len(found.reasons) == 3 and "0.002 nats" in found.reasons[0]
    assert (
        "mean KLD up to 0.01 nats, flips 1%, p99 0.1 nats, own texts that repeat themselves 1%" in found.reasons[0]
    ), "what the tier is"
    assert any("8,192 were asked for" in each for each in found.untested)


def test_where_no_other_lane_will_do_the_nearest_is_told():
    lanes = [*rows("small", noisy(0.05)), *rows("middle", noisy(0.02, seed=1)), *rows("large", noisy(0.0001, seed=2))]
    found = asked(lanes, [option("large"), option("small"), option("middle")])
    assert (found.label, found.runner_up, found.runner_up_lane) == ("large", None, None)
    assert found.separates == (
        "No other lane will do. The nearest is middle, 300 B, 0.02 nats: it loses more than is tolerated."
    )
    alone = asked(rows("large", noisy(0.0001)), [option("large")])
    assert alone.separates == "No other lane was run that could be had."


@pytest.mark.slow
def test_two_lanes_of_one_size_that_lose_alike_cannot_be_told_apart():
    a, b = noisy(0.003, seed=3), noisy(0.00302, seed=4)
    found = asked([*rows("small", a), *rows("middle", b)], [option("small"), option("middle", nbytes=SIZES["small"])])
    assert found.kind == "unsure" and not found.sure and found.agreement is not None and found.agreement < 0.9
    assert "small or middle, which are of one size, whichever loses less" in found.answer and found.label == "small"
    table = pd.DataFrame([*rows("small", a), *rows("middle", b)])
    (pair,) = pairs(table)
    told = [int(word.replace(",", "")) for word in found.answer.split() if word.replace(",", "").isdigit()]
    assert not pair.apart and told == [pair.needed - 12], "as the study asks for"
    assert found.separates is not None and found.separates.endswith(pair.sentence)


@pytest.mark.slow
def test_agreement_is_the_share_of_resamples_in_which_the_threshold_is_kept():
    """Against a plain loop over draws of its own."""
    klds = noisy(0.0098, seed=5, spread=0.5)
    found = asked([*rows("small", klds), *rows("large", noisy(1e-4))], [option("small"), option("large")], "0.01")
    draw = np.random.default_rng(9)
    kept = np.mean([klds[draw.integers(0, 12, 12)].mean() <= 0.01 for _ in range(4000)])
    assert found.label == "small" and found.agreement == pytest.approx(kept, abs=0.04)
    assert found.kind == "unsure" and "small if it is within a mean KLD of 0.01 nats, else large" in found.answer


def test_none_of_these_says_what_is_nearest_and_what_would_help():
    found = asked([*rows("small", noisy(0.5)), *rows("large", noisy(0.03, seed=1))], [option("small"), option("large")])
    assert (found.kind, found.lane, found.flags, found.runner_up) == ("none", None, None, None) and found.sure
    assert found.answer.startswith("None of these: no lane is within the tier close; large with a mean KLD of 0.03 n")
    assert any("tolerance of marginal" in each for each in found.helps)
    assert any("unquantized" in each for each in found.helps)


def test_a_winner_that_fails_one_task_is_not_the_answer():
    right = [True] * 40
    wrong = [at % 2 == 0 for at in range(20)] + [True] * 20
    group = ["json"] * 20 + ["needle"] * 20
    found = asked(
        [
            *rows("small", noisy(0.001, 40), group=group, reference_correct=right, correct=wrong),
            *rows("large", noisy(0.0005, 40, 1), group=group, reference_correct=right, correct=right),
        ],
        [option("small"), option("large")],
    )
    assert found.label == "large"
    told = {each.label: each for each in found.front}
    assert "in group json it gets 50% of the 20 tasks right" in (told["small"].why_not or "")


def test_a_winner_that_loses_one_group_of_prompts_is_not_the_answer():
    klds = np.concatenate([noisy(0.001, 30), noisy(0.05, 6, 2)])
    group = ["prose"] * 30 + ["code"] * 6
    found = asked(
        [*rows("small", klds, group=group), *rows("large", noisy(1e-4, 36), group=group)],
        [option("small"), option("large")],
    )
    assert klds.mean() < 0.01 and found.label == "large"
    assert "in group code its mean KLD is 0.05 nats" in (found.front[0].why_not or "")


@pytest.mark.slow
def test_a_tolerance_of_tasks_counts_what_the_model_gets_right():
    reference = [True] * 20 + [False] * 5
    one_lost = [False] + [True] * 19 + [False] * 5
    found = [
        *rows("small", noisy(0.5, 25), reference_correct=reference, correct=one_lost),
        *rows("large", noisy(0.5, 25, 1), reference_correct=reference, correct=reference),
    ]
    options = [option("small"), option("large")]
    assert asked(found, options, "task:0.02").label == "large"
    assert asked(found, options, "task:0.05").label == "small"
    with pytest.raises(SpecError, match="no task"):
        asked(rows("small", noisy(0.5)), [option("small")], "task:0.02")


def test_a_winner_that_does_not_fit_is_told_with_the_context_that_would():
    options = [option("small"), option("middle", fits=False)]
    found = asked(
        [*rows("small", noisy(0.05)), *rows("middle", noisy(0.002, seed=1))],
        options,
        memory=24 * GB,
        nearest_context=4_000,
    )
    assert found.kind == "none" and "does not fit" in found.answer
    assert "middle is within the tier close, but" in found.answer
    assert any("at most 4,000 tokens" in each for each in found.helps)


def test_a_memory_smaller_than_the_weights():
    memory = 5 * GB
    assert allowance().left(memory) < 4 * GB
    found = asked(rows("small", noisy(0.002)), [option("small", fits=False)], memory=memory)
    assert (
        found.kind == "none" and "the weights alone take 4.00 GB, and of 5.00 GB weights and cache may" in found.answer
    )
    assert any("--weights" in each for each in found.helps)


def test_a_study_without_the_engines_formats():
    why = "vLLM cannot have it: it has no such format"
    found = asked(rows("small", noisy(0.002)), [option("small", refused=why, flags=None)], engine="vLLM")
    assert found.kind == "none" and "none of vLLM's formats" in found.answer and found.front[0].why_not == why
    assert any("study of the engine's formats" in each for each in found.helps)


def test_three_prompts_recommend_nothing():
    found = asked(rows("small", [0.002, 0.003, 0.002]), [option("small")])
    assert (found.kind, found.lane, found.agreement) == ("few", None, None)
    assert "has 3, and 5 are needed" in found.answer and found.front[0].kld_low is None
    assert any("12" in each for each in found.helps)


def test_a_lane_that_failed_on_a_prompt_is_no_answer():
    klds = noisy(0.001)
    klds[3] = np.nan
    found = asked([*rows("small", klds), *rows("large", noisy(0.002))], [option("small"), option("large")])
    assert found.label == "large" and found.prompts == 12
    assert next(each for each in found.front if each.label == "small").why_not == "it failed on a prompt"


@pytest.mark.slow
def test_flips_and_the_tail_of_a_tier_count():
    flips = {"flips": [3] * 12, "near_tie_flips": [0] * 12}
    calm, flipping = rows("large", noisy(0.002)), rows("small", noisy(0.001), **flips)
    assert asked([*flipping, *calm], [option("small"), option("large")]).label == "large"
    spiky = rows("small", noisy(0.004))
    for row in spiky:
        row["kld"] = np.array([0.2, 0.2] + [1e-5] * 98)
    assert asked([*spiky, *calm], [option("small"), option("large")]).label == "large"
    assert asked([*spiky, *calm], [option("small"), option("large")], "0.01").label == "small"


@pytest.mark.parametrize("given", ["fine", "-1", "nan", "task:2", "0", "risky"])
def test_a_tolerance_that_cannot_be_is_refused(given):
    with pytest.raises(SpecError, match="tolerance = "):
        Tolerance.parse(given)


def test_what_cannot_be_asked_is_refused():
    close = Tolerance.parse("close")
    with pytest.raises(SpecError, match="memory and bits"):
        Ask(close, memory=GB, bits=4.0)
    with pytest.raises(SpecError, match="batch = 0"):
        Ask(close, batch=0)
    with pytest.raises(SpecError, match="engine = 'vlm'"):
        engine_of("vlm")
    assert engine_of("LLAMA.cpp") == "llama.cpp"


def test_the_report_says_all_of_it_and_runs_nothing():
    label = "<script>|`x`"
    sizes = {"nbytes": 240, "flags": "serve"}
    hostile = replace(option("small"), label=label, **sizes)
    found = asked([*rows(label, noisy(0.002)), *rows("large", noisy(1e-4))], [hostile, option("large")])
    page, told = as_html(found), as_markdown(found)
    assert "<script" not in page and "&lt;script&gt;" in page and "<svg" in page and "<circle" in page
    assert "\\<script\\>\\|" in told and "```sh\nserve\n```" in told
    for text in (page, told):
        assert "Not tested" in text and "Worst prompts" in text and "r" + str(noisy(0.002).argmax()) in text
    assert json.loads(found.model_dump_json())["agreement"] == 1.0


def test_flags_come_from_twelve_prompts_on_and_with_the_engines_own_prefill():
    few = asked(rows("small", noisy(0.002, prompts=11)), [option("small")])
    assert few.label == "small" and few.flags is None and "from 12 prompts on" in few.unflagged
    assert all(each.flags is None for each in few.front) and "too few to say what to use" in few.answer
    whole = asked(rows("small", noisy(0.002)), [option("small", flags=None, unread="small read its prompts whole")])
    assert whole.flags is None and "prefill = deployed" in whole.unflagged
    assert asked(rows("small", noisy(0.002)), [option("small")]).flags == "serve --cache small"


@pytest.mark.parametrize(("prefill", "unread"), [("full", True), ("deployed", False), ({"chunk": 512}, False)])
def test_a_lane_that_read_its_prompts_whole_is_not_as_its_engine_serves_it(prefill, unread):
    lane = Lane(label="a", method="q4_0", prefill=prefill)
    assert bool(_unread(lane, 8192)) is unread
    assert _unread(Lane(label="b", method="quanto"), 8192) is None, "transformers reads a prompt at once"


def test_commvq_takes_what_its_run_stored_and_fits_where_no_other_lane_does() -> None:
    """Of the shipped run with all papers at two bits, within 2 %, its codebooks beside it."""
    record, _ = find_run("5f8fb2312b89f968")
    at = next(at for at, row in enumerate(record.lanes) if row.method == "commvq")
    memory, lane = record.lanes[at].memory, lane_of(record, at)
    assert memory is not None and lane is not None
    place = FitPlace(shape_of(record), WEIGHTS, Ask(Tolerance.parse(1.0), context=memory.tokens))
    found = place.option(lane)
    assert found.nbytes == pytest.approx(memory.stored_bytes + memory.window_bytes, rel=0.02)
    assert found.shared == memory.shared_bytes
    asked = Ask(Tolerance.parse(1.0), context=8192)
    own = replace(place, ask=asked).option(lane)
    tight = replace(place, ask=replace(asked, cache=(own.nbytes or 0) + own.shared))
    assert tight.option(lane).fits is True
    others = (Lane(label="k", method="kivi", knobs={"bits": 2}), Lane(label="q", method="q4_0"))
    assert [tight.option(each).fits for each in others] == [False, False]
