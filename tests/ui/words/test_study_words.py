"""What a study's answer says of its lanes."""

from types import SimpleNamespace

from ui.words.study import study_words


def lane(label: str, mean: float, high: float | None, ratio: float | None) -> dict:
    low = None if high is None else mean * mean / high
    ends = {"kld_mean": mean, "kld_low": low, "kld_high": high}
    tier = None if high is None else "close" if high <= 0.01 else "marginal"
    return {"label": label, "model": "m", "prompts": 12, "kv_ratio": ratio, "tier": tier, "tier_reason": "KLD", **ends}


def reasons(*lanes: dict) -> tuple[str, ...]:
    return study_words(SimpleNamespace(lines=list(lanes), pairs=[], failed={}), "m").reasons


def test_the_smallest_lane_that_is_surely_close_is_named_beside_the_closest() -> None:
    best, mixed = lane("q8_0", 3e-4, 4e-4, 0.53), lane("K q8_0, V q4_0", 0.005, 0.0064, 0.41)
    wide, risky = lane("wide", 0.004, 0.02, 0.30), lane("q4_0", 0.05, 0.07, 0.28)
    told = "The smallest that is surely close: K q8_0, V q4_0, 41 % of the bytes"
    assert any(reason.startswith(told) for reason in reasons(best, mixed, wide, risky))
    assert not any("surely" in reason for reason in reasons(best, risky)), "it is the closest, which is named already"
    assert "No lane is surely close." in reasons(wide, risky)
    looped = {**best, "tier": "marginal", "tier_reason": "own text"}
    assert "No lane is surely close: by KLD q8_0 is, but not by its own text." in reasons(looped, risky)
    few = [lane(label, mean, None, 0.5) for label, mean in (("a", 0.001), ("b", 0.002))]
    assert not any("surely" in reason for reason in reasons(*few)), "of few prompts there are no intervals"
