"""A lane that joined a run: what figures of all layers leave out is said."""

from kvq_core.record.part import with_added
from tests.support.ui_record_factory import make_run
from ui.figures import damage_grid
from ui.selection import Selection
from ui.words.damage import damage
from ui.words.views import subspace


def test_a_lane_that_joined_is_named_where_figures_of_all_layers_leave_it_out() -> None:
    record, arrays = make_run(lanes=2, labels=("KIVI", "SQuat"))
    said = "KIVI + layer 0 fp16 joined later and is looked at one head at a time"
    assert "joined later" not in damage(record, arrays, Selection(0, 0, 1))
    late, found = make_run(lanes=1, labels=("KIVI + layer 0 fp16",))
    apart = {name: values for name, values in found.items() if name.rpartition("/")[2] in ("kld", "nll", "same_top")}
    whole, both = with_added(record, arrays, [(late.model_copy(update={"parent": record.id, "id": "f" * 16}), apart)])
    assert [lane.label for lane in whole.lanes] == ["KIVI", "SQuat", "KIVI + layer 0 fp16"]
    assert len(damage_grid(whole, both, "relative", "key", 0, 0).data) == 2
    assert said in damage(whole, both, Selection(0, 0, 1))
    assert "Of KIVI + layer 0 fp16, which joined later, the key error is not split." in subspace(whole, both, 2)
    measured = {name.replace("lane/0", "lane/2"): values for name, values in found.items() if name.startswith("lane/0")}
    assert "lane/2/key_error" in measured
    assert "joined later" not in damage(whole, both | measured, Selection(0, 0, 1))
