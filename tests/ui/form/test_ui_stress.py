"""The dials of stress: what the form shows, reads and says of them."""

import pytest

from kvq_core.errors import SpecError
from kvq_core.presets import presets
from kvq_core.spec import ComparisonSpec, Stress
from ui.form.setup_panel import _headed, create_stress
from ui.form.stress import dial_text, read_dial, stress_summary
from ui.form.values import FIELDS, STRESS, from_comparison, to_comparison


def form(stress: Stress) -> tuple[dict, list, dict]:
    """The form's values, lanes and rest for a spec with this stress."""
    values, lanes, rest = from_comparison(ComparisonSpec(prompt="-", stress=stress))
    return dict(zip(FIELDS, values, strict=True)), lanes, rest


@pytest.mark.parametrize(
    "stress",
    [
        Stress(),
        Stress(key_outlier_scale=8, key_outlier_pairs=3),
        Stress(key_outlier_scale=0.5, key_outlier_pairs=(3,)),  # pair 3, not three pairs
        Stress(key_outlier_scale=2, key_outlier_pairs=(0, 5)),
        Stress(key_bias=-20, layers=(7,), kv_heads=(0, 2)),
    ],
)
def test_stress_survives_the_form(stress):
    values, lanes, rest = form(stress)
    assert "stress" not in rest
    assert to_comparison(values, lanes, rest).stress == stress


def test_the_form_decides_over_what_a_preset_brought():
    values, lanes, rest = from_comparison(presets()["stress-outliers"].spec)
    values = dict(zip(FIELDS, values, strict=True))
    assert to_comparison(values, lanes, rest).stress == Stress(key_outlier_scale=8, key_outlier_pairs=2)
    assert not to_comparison({**values, "stress.key_outlier_scale": 1}, lanes, rest).stress.active


def test_captures_are_chosen_in_the_form_and_their_axes_kept():
    spec = ComparisonSpec(prompt="-", capture={"detail": "deep", "layers": (0, 4)})
    values, lanes, rest = from_comparison(spec)
    values = dict(zip(FIELDS, values, strict=True))
    assert values["capture.detail"] == "deep" and to_comparison(values, lanes, rest) == spec
    assert to_comparison({**values, "capture.detail": "off"}, lanes, rest).capture.layers == (0, 4)


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("key_outlier_pairs", "2", 2),
        ("key_outlier_pairs", "[2]", [2]),
        ("key_outlier_pairs", "0, 5-7", [0, 5, 6, 7]),
        ("key_outlier_pairs", "", 2),
        ("layers", "2", [2]),
        ("layers", " ALL ", "all"),
        ("kv_heads", None, "all"),
        ("key_bias", None, 0.0),
    ],
)
def test_dials_are_read_as_people_write_them(name, text, value):
    assert read_dial(STRESS[f"stress.{name}"], text) == value


@pytest.mark.parametrize("value, text", [(2, "2"), ((2,), "[2]"), ([0, 5], "0, 5"), ("all", "all"), (8.0, 8.0)])
def test_dials_show_what_they_read(value, text):
    assert dial_text(value) == text


@pytest.mark.parametrize("name, text", [("layers", "x"), ("key_outlier_pairs", "0"), ("key_outlier_scale", 5000)])
def test_what_is_no_stress_is_refused_by_its_name(name, text):
    values, lanes, rest = form(Stress())
    with pytest.raises(SpecError, match=rf"^stress\.{name} = .* is not allowed: "):
        to_comparison({**values, f"stress.{name}": text}, lanes, rest)


def test_every_dial_has_a_control_with_its_help_and_range():
    import gradio as gr

    with gr.Blocks():
        controls = create_stress()
    for (place, dial), control in zip(STRESS.items(), controls, strict=True):
        field = Stress.model_fields[place.removeprefix("stress.")]
        assert control.label == field.title and field.description in control.info
        assert control.value == dial_text(field.default)
        assert dial.maximum is None or f"{dial.maximum:,g}" in control.info


def test_whether_stress_is_on_is_said_in_a_few_words():
    assert stress_summary(Stress()) == stress_summary(Stress(key_outlier_pairs=9, layers=(3,))) == "off"
    assert (
        stress_summary(Stress(key_outlier_scale=8, key_bias=2, layers=(3,)))
        == "on · keys × 8 on 2 pairs, bias 2, 1 layer"
    )
    values = form(Stress(key_bias=3))[0]
    headed = _headed(*(values[place] for place in STRESS))
    assert headed["label"] == "Stress · on · bias 3" and headed["elem_classes"] == ["on"]
    wrong = _headed(*({**values, "stress.layers": "x"}[place] for place in STRESS))
    assert wrong["label"] == "Stress · needs a change" and wrong["elem_classes"] == ["wrong"]
