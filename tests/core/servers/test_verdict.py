"""The verdict of figures that are given: its words, and what it says to look at first."""

import numpy as np
import pytest

from kvq_core.engines import engines
from kvq_core.methods import methods
from kvq_core.servers.verdict import FoundNats, judge

PROMPTS, POSITIONS = 12, 16


def nats(mean: float, seed: int = 0) -> list[list[float]]:
    """By prompt and position, alike enough for a narrow interval."""
    drawn = np.random.default_rng(seed).normal(1, 0.1, (PROMPTS, POSITIONS)).clip(0.5)
    return (mean * drawn).tolist()


def found(mean: float, predicted: float | None, engine: str = "llama.cpp", **more: object) -> FoundNats:
    lanes = {} if predicted is None else {"format": nats(predicted, 1), "floor": nats(1e-5, 2)}
    told = {"reused": 0.99, "stored": True, "tolerance": None, "lanes": lanes, "unpredicted": "no --format is given."}
    told |= {"delivered": nats(mean), "floor": nats(1e-5, 3), "engine": engine}
    return FoundNats(**{**told, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("delivered", "predicted", "word"),
    [
        (1e-5, 0.05, "no-op"),
        (0.05, 0.05, "as expected"),
        (0.06, 0.05, "as expected"),
        (0.2, 0.05, "worse"),
        (0.01, 0.05, "cannot tell"),  # a finer format
        (1e-5, 2e-5, "cannot tell"),  # one that rounding hides
        (0.05, None, "cannot tell"),
    ],
)
def test_the_word_follows_from_floor_and_prediction(delivered: float, predicted: float | None, word: str) -> None:
    assert judge(found(delivered, predicted)).word == word


@pytest.mark.parametrize(("tolerance", "word"), [(0.1, "as expected"), (0.01, "worse"), (0.0505, "cannot tell")])
def test_without_a_prediction_a_tolerance_decides(tolerance: float, word: str) -> None:
    assert judge(found(0.05, None, tolerance=tolerance)).word == word


@pytest.mark.parametrize(
    ("engine", "scales"),
    [
        ("llama.cpp", None),
        ("ik_llama.cpp", None),
        ("vLLM", "of fp8, fp8_e5m2, nvfp4, nvfp4_4over6 that"),
        ("SGLang", "of fp8_e4m3, fp8_e5m2, nvfp4 that"),
        ("OpenAI", "static ones that"),  # an engine that is not known may have any
    ],
)
def test_static_scales_are_suspected_where_the_engine_has_formats_with_some(engine: str, scales: str | None) -> None:
    said = [each for each in judge(found(0.2, 0.05, engine)).suspects if each.startswith("scales")]
    assert (not said) if scales is None else (scales in said[0])


def test_formats_with_static_scales_are_those_whose_methods_have_that_knob() -> None:
    """In the engines' rows, and nowhere else."""
    scaled = [kind for kind in methods().values() if kind.home and {"one", "tensor"} <= _choices(kind)]
    assert {kind.name for kind in scaled} == {"fp8", "nvfp4"}
    words: dict[str, set[str]] = {}
    for kind in scaled:
        every = [{}, {"format": "e5m2"}] if kind.name == "fp8" else [{}, {"four_over_six": True}]
        for knobs in every:
            for engine, word in kind(**knobs).cache_types.items():
                words.setdefault(engine, set()).add(word)
    assert {name: set(row.scales) for name, row in engines().items() if row.scales} == words


def _choices(kind: type) -> set[str]:
    field = kind.model_fields.get("scale")  # type: ignore[attr-defined]
    return set(getattr(field.annotation, "__args__", ())) if field else set()


def test_rotation_windows_and_prefixes_are_suspected_where_figures_say_so() -> None:
    lanes = {"format": nats(0.05, 1), "floor": nats(1e-5, 2), "unrotated": nats(0.2, 4)}
    said = judge(found(0.2, 0.05, lanes=lanes)).suspects
    assert said[0].startswith("rotation: without it this format costs 0.2")
    assert not any("rotation" in each for each in judge(found(2.0, 0.05, lanes=lanes)).suspects)
    late = [[value * (10 if at >= POSITIONS // 2 else 1) for at, value in enumerate(each)] for each in nats(0.05)]
    assert any(each.startswith("windows") for each in judge(found(0.2, 0.05, delivered=late)).suspects)
    assert any(each.startswith("prefixes") for each in judge(found(0.2, 0.05, reused=0.1)).suspects)
    assert judge(found(0.05, 0.05, reused=0.1, stored=None)).word == "cannot tell", "never read from the cache"
