"""A lane that joined a run: what figures of all layers leave out is said, until it is looked at in all layers."""

from kvq_core.record.subset import with_added
from tests.support.ui_record_factory import make_run
from ui.figures import damage_grid
from ui.html.looks import layers_html


def test_a_lane_that_joined_is_named_where_figures_of_all_layers_leave_it_out() -> None:
    record, arrays = make_run(lanes=2, labels=("KIVI", "SQuat"))
    assert layers_html(record, arrays, "delta_mean") == ""
    late, found = make_run(lanes=1, labels=("KIVI + layer 0 fp16",))
    apart = {name: values for name, values in found.items() if name.rpartition("/")[2] in ("kld", "nll", "same_top")}
    whole, both = with_added(record, arrays, [(late.model_copy(update={"parent": record.id, "id": "f" * 16}), apart)])
    assert [lane.label for lane in whole.lanes] == ["KIVI", "SQuat", "KIVI + layer 0 fp16"]
    assert len(damage_grid(whole, both, "relative", "key", 0, 0).data) == 2
    for name in ("delta_mean", "key_error_energy"):
        said = layers_html(whole, both, name)
        assert "KIVI + layer 0 fp16 joined later and is not in the figures of all layers" in said
        assert 'data-act="layers" data-lane="2"' in said
    measured = {name.replace("lane/0", "lane/2"): values for name, values in found.items() if name.startswith("lane/0")}
    assert "lane/2/key_error" in measured and layers_html(whole, both | measured, "delta_mean") == ""
    assert layers_html(whole, {}, "delta_mean") == "", "a run without captures has no such figures"
