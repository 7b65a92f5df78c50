"""What tells two comparisons apart, against changes that were made by hand."""

from kvq_core.analysis.two_specs import ORDER, Change, changes
from kvq_core.presets import presets
from kvq_core.spec import ComparisonSpec, parse_spec

BASE = {
    "prompt": "Hi",
    "lanes": [{"method": "kivi"}, {"method": "per_token", "knobs": {"bits": 4}}, {"method": "fp8", "label": "Eight"}],
}


def spec(**changed: object) -> ComparisonSpec:
    return parse_spec({**BASE, **changed})


def lanes(*numbers: int) -> list[dict]:
    return [BASE["lanes"][number] for number in numbers]


def test_equal_comparisons_have_no_changes() -> None:
    for preset in presets().values():
        assert list(changes(preset.spec, parse_spec(preset.spec.model_dump(mode="json")))) == []


def test_fields_and_knobs_are_told_with_both_values() -> None:
    other = spec(
        prompt="Ho", capture={"detail": "deep"}, lanes=[{"method": "kivi", "knobs": {"bits": 4}}, *lanes(1, 2)]
    )
    label = spec().lanes[0].label
    assert set(changes(spec(), other)) == {
        Change("prompt", "Hi", "Ho"),
        Change("capture.detail", "normal", "deep"),
        Change("knobs.bits", 2, 4, label),
    }


def test_a_lane_that_one_alone_has_is_told_by_its_label() -> None:
    (gone,) = changes(spec(), spec(lanes=lanes(0, 1)))
    assert (gone.lane, gone.place, gone.other) == ("Eight", "", None) and gone.one is not None
    (new,) = changes(spec(lanes=lanes(0, 1)), spec())
    assert (new.lane, new.one) == ("Eight", None) and new.other is not None


def test_another_label_or_order_is_no_other_cache() -> None:
    (named,) = changes(spec(), spec(lanes=[*lanes(0, 1), {"method": "fp8", "label": "8"}]))
    assert named == Change("label", "Eight", "8", "Eight")
    (order,) = changes(spec(), spec(lanes=lanes(2, 0, 1)))
    assert order.place == ORDER and order.one.endswith("Eight") and order.other.startswith("Eight")
