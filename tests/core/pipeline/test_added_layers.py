"""A lane that was added and looked at in all layers since: it stands in the figures as the run's own lanes do."""

import numpy as np
import pytest

from kvq_core.engine.prompt_memory import READINGS
from kvq_core.pipeline.added import adding_on, captures_of
from kvq_core.pipeline.compare import compare_on
from tests.core.pipeline.test_added import ADDED, added, spec, told
from tests.core.pipeline.test_batches import KINDS
from tests.support.tiny_models import tiny
from ui.service.records import join_lanes

OWN = {"kld", "nll", "delta_p", "same_top", "acceptance", "topk_ids", "topk_probs", "key_bits", "value_bits"}
OF_MAPS = {"delta_map", "delta_scale", "attention_rows", "key_quantiles", "latent_quantiles"}  # of a layer and head


@pytest.fixture(scope="module")
def model(smollm):
    return tiny("qwen2", tokenizer=smollm.tokenizer)


def test_a_lane_that_joined_has_all_that_the_same_lane_of_a_whole_run_has(model) -> None:
    READINGS.clear()
    parent, _ = told(compare_on(model, spec()))
    late, _ = added(model, parent)
    both = [(late.record, late.arrays)]
    record, arrays = join_lanes(parent.record, parent.arrays, both)
    assert "lane/2/kld" in arrays and "lane/2/delta_mean" not in arrays
    found, read = told(adding_on(model, late.record, captures_of(late.record, 0, spec().capture)))
    assert read == [] and found.record.parent == parent.record.id
    record, arrays = join_lanes(parent.record, parent.arrays, [*both, (found.record, found.arrays)])
    assert [lane.label for lane in record.lanes][2:] == ["added"], "the look is no lane"
    whole, _ = told(compare_on(model, spec(lanes=[*KINDS[:2], ADDED.model_dump(mode="json")])))
    names = {name.removeprefix("lane/2/") for name in whole.arrays if name.startswith("lane/2/")}
    assert {name.removeprefix("lane/2/") for name in arrays if name.startswith("lane/2/")} >= names - OF_MAPS
    for name in names - OF_MAPS - OWN:
        one, other = (np.asarray(each[f"lane/2/{name}"], dtype=np.float64) for each in (arrays, whole.arrays))
        assert one.shape == other.shape, name
        assert np.linalg.norm(one - other) <= 0.05 * np.linalg.norm(other) + 1e-9, name
    for at in range(2):  # nothing of the run's own lanes is another
        assert all(arrays[name] is held for name, held in parent.arrays.items() if name.startswith(f"lane/{at}/"))
