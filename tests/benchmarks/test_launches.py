"""What benchmarks/launches.py counts: operations that a GPU would launch, and what waits for one."""

import torch

from benchmarks.launches import META, OnDevice, Steps, measure
from kvq_core.engine.fidelity import Fidelity


def counted(how, work):
    with how:
        work()
    return dict(how._waits if isinstance(how, OnDevice) else how._now)


def test_operations_are_counted_and_views_are_not():
    x = torch.ones(4, 6)
    found = counted(Steps(), lambda: (x.view(6, 4)[:2].T + 1).float().half().sum())
    assert found == {"add": 1, "_to_copy": 1, "sum": 1}


def test_what_waits_for_the_device_is_counted():
    x, own = torch.ones(5, 3, device=META), torch.ones(5)

    def work():
        assert len(x.argmax(-1).tolist()) == 5 and x.sum().item() == 0
        assert torch.isfinite(x).all() and not (x > 1).any()
        x[:, 0].cpu()
        own.copy_(x[:, 1])
        (x > 0).nonzero()
        x[torch.ones(5, dtype=torch.bool, device=META)]
        own.cpu(), own.tolist(), own.to(META), x.to(torch.float16)  # none of which waits

    assert counted(OnDevice(), work) == {"cpu": 3, "item": 3, "nonzero": 1, "boolean index": 1}


def test_scores_wait_for_nothing_and_lanes_are_told_by_one_copy():
    fidelity = Fidelity(3)
    logits = torch.zeros(1, 50, device=META), torch.zeros(3, 1, 50, device=META)
    assert counted(OnDevice(), lambda: fidelity(*logits, [1])) == {}
    assert counted(OnDevice(), lambda: [fidelity.latest("kld", lane, 0) for lane in range(3)]) == {"cpu": 1}
    assert counted(OnDevice(), lambda: fidelity.column("nll", 2)) == {"cpu": 1}


def test_a_step_of_a_small_model():
    """The counts reached: a layer costs a comparison of eight lanes 1.5 times what it costs generate, and the host
    waits once a step, for what all rows chose."""
    one, parts = measure(layers=1)
    more, _ = measure(layers=3)
    layer = {name: (more[name] - one[name]) / 2 for name in one}
    assert layer["inside"] <= 1.5 * layer["generate"] and layer["looked"] <= layer["inside"] + 5
    assert layer["outside"] == layer["due"] == 0  # layers are stored together
    assert one["outside"] <= 60 and parts["outside"]["argmax"] == 1 and one["due"] <= 600
    assert one["host_waits"] == more["host_waits"] == 1 and parts["host_waits"] == {"cpu": 1}
