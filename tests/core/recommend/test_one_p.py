"""A pair of lanes has one p, Holm's over what the study compared: its sentences agree wherever the pair is told."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from kvq_core.analysis.scored import CONFIDENCE
from kvq_core.recommend.answer import Study, advice_of
from kvq_core.recommend.constraints import Ask, Tolerance
from kvq_core.studies.pairs import PairedDifference, paired_test, pairs
from tests.core.recommend.test_advice import WEIGHTS, noisy, option, rows
from ui.study.results import _told
from ui.words.study import study_words


def table(effect: float) -> pd.DataFrame:
    """Small and middle differ by so much, and six lanes beside them lose all alike."""
    small, draw = noisy(0.004, seed=1), np.random.default_rng(3)
    middle = small * np.exp(-effect + draw.normal(0, 0.2, 12))
    others = [small * np.exp(1 + draw.normal(0, 0.4, 12)) for _ in range(6)]
    found = [*rows("small", small), *rows("middle", middle)]
    return pd.DataFrame([*found, *(row for at, klds in enumerate(others) for row in rows(f"other {at}", klds))])


def pair_of(found: pd.DataFrame) -> PairedDifference:
    return next(pair for pair in pairs(found) if {pair.a, pair.b} == {"small", "middle"})


@pytest.mark.parametrize(("effect", "apart"), [(0.35, False), (0.6, True)])
def test_what_the_whole_study_does_not_tell_apart_is_told_closer_nowhere(effect: float, apart: bool) -> None:
    found = table(effect)
    two = found[found["lane"].isin(["small", "middle"])]
    klds = [two.loc[two["lane"] == lane, "kld_mean"].to_numpy() for lane in ("small", "middle")]
    assert paired_test(*klds)[0] < 1 - CONFIDENCE, "alone they would be told apart"
    pair = pair_of(found)
    assert pair.apart == apart
    study = Study("s", "M", found, [option("small"), option("middle")], option("fp16"), WEIGHTS)
    for known in ((), pairs(found)):
        told = advice_of(replace(study, pairs=known), Ask(Tolerance.parse("close")))
        assert told.separates is not None and told.separates.endswith(pair.sentence)
        assert ("is closer" in f"{told.answer} {told.separates} {told.reasons}") == apart
    assert pair.sentence in _told([pair]).replace("&nbsp;", " ")
    lines = [
        {"label": lane, "model": "M", "prompts": 12, "kld_mean": kld.mean(), "kld_low": None, "kld_high": None}
        | {"kv_ratio": 0.3, "tier": None, "tier_reason": None}
        for lane, kld in zip(("small", "middle"), klds, strict=True)
    ]
    said = study_words(SimpleNamespace(lines=lines, pairs=[pair], failed={}), "M")  # type: ignore[arg-type]
    assert ("closest" in said.sentence) == apart and not any("is closer" in reason for reason in said.reasons)


def test_an_answer_of_two_lanes_of_one_size_never_denies_what_the_study_tells() -> None:
    """Told apart, and yet the resamples disagree: the closer one may be beyond what is tolerated."""
    klds = noisy(0.0099, seed=5, spread=0.5)
    found = pd.DataFrame([*rows("small", klds), *rows("middle", klds * 0.97 * np.exp(noisy(0.001) - 0.001))])
    study = Study("s", "M", found, [option("small"), option("middle", nbytes=250)], option("fp16"), WEIGHTS)
    told = advice_of(study, Ask(Tolerance.parse("0.0098")))
    assert pair_of(found).apart and told.kind == "unsure"
    assert told.answer.startswith("middle if it is within") and "annot" not in told.answer
