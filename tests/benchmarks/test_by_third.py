"""The third model's part of docs/claims.md."""

from benchmarks import by_third
from benchmarks.measured import figures

LABELS = {"K q8_0 V q8_0": 0.1, "K q8_0 V q4_0": 0.2, "K q4_0 V q8_0": 0.4, "K q4_0 V q4_0": 0.8}


def lines(order: int = 1) -> list[dict]:
    values = list(LABELS.values())[::order]
    return [{"label": label, "kld_mean": kld, "prompts": 4} for label, kld in zip(LABELS, values, strict=True)]


def test_the_grid_is_keys_by_values_and_says_whether_the_smaller_model_ranks_alike() -> None:
    said = by_third._grid({"Small-Instruct": lines(), "Large-Instruct": lines()})
    assert "| K q8_0 | 0.1 | 0.2 |" in said and "| K q4_0 | 0.4 | 0.8 |" in said
    assert "those of Small by 1.00" in said and "Small 0.2 and 0.4; Large 0.2 and 0.4" in said
    assert "those of Small by -1.00" in by_third._grid({"Small-Instruct": lines(), "Large-Instruct": lines(-1)})


def test_what_is_not_measured_on_it_is_said(monkeypatch) -> None:
    said, found = by_third.third_part(), figures("third_model")
    assert found is not None and ("grid is not measured" in said) == ("grid" not in found)
    monkeypatch.setattr(by_third, "figures", lambda name: None)
    assert "Not measured yet" in by_third.third_part()
