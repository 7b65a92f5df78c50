"""A study on a local Ray cluster of two nodes, one of which is lost."""

import os
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvq_core.errors import KvqError
from kvq_core.machine.progress import Progress
from kvq_core.record.store import open_store
from kvq_core.studies.cells import plan
from kvq_core.studies.ray_core import RayActors
from kvq_core.studies.spec import parse_study
from kvq_core.studies.study import run_plan, study
from tests.support.study_models import study_data, write_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # a node is only missed after a while
if not os.environ.get("KVQ_REQUIRE_BROWSER"):
    pytestmark += [pytest.mark.skipif(find_spec("ray") is None, reason="needs requirements-studies.txt")]


def test_an_address_where_nobody_listens_is_told_at_once():
    def init(**_: object) -> None:
        raise AssertionError("Ray would try for minutes")

    stands_in = SimpleNamespace(is_initialized=lambda: False, init=init)
    with (
        pytest.raises(KvqError, match=r"No Ray cluster at 127\.0\.0\.1:9: "),
        RayActors("127.0.0.1:9")._connected(stands_in),
    ):
        pass


def test_a_store_in_memory_is_refused(model, monkeypatch):
    monkeypatch.setattr("kvq_core.studies.ray_core._ray", lambda: SimpleNamespace(is_initialized=lambda: True))
    with pytest.raises(KvqError, match="A store in memory is this process's alone; set KVQ_STORE to one"):
        run_plan(plan(parse_study(study_data(model, 1))), open_store("memory://ray"), executor=RayActors())


@pytest.mark.long("programs", sample=0)
def test_two_nodes_give_what_one_process_gives_though_one_is_lost(tmp_path, monkeypatch):
    import ray
    from ray.cluster_utils import Cluster

    write_model(tmp_path / "tiny", seed=9)  # whose id no other test finds elsewhere
    monkeypatch.chdir(tmp_path)
    data = study_data(Path("tiny"), 6)  # a relative path is the same one on an actor
    one = study(parse_study(data), open_store(str(tmp_path / "one")))
    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": soon}  # a lost node is missed soon
    cluster = Cluster(initialize_head=True, head_node_args=head)
    lost = [cluster.add_node(num_cpus=1)]

    def progress(at: Progress) -> None:
        if at.doing == "Computing" and at.done == 1 and lost:
            cluster.remove_node(lost.pop(), allow_graceful=False)

    try:
        actors = RayActors(cluster.address)
        two = run_plan(plan(parse_study(data)), open_store(str(tmp_path / "two")), executor=actors, progress=progress)
        assert not ray.is_initialized()  # nor tells Ray of the loss after the figures
    finally:
        cluster.shutdown()
    assert not lost and two.cells == one.cells and two.cells["done"] == 6
    known, found = (each.table.set_index(["prompt", "lane"]) for each in (one, two))
    assert list(found["run"]) == list(known["run"]) and list(found["kld_mean"]) == list(known["kld_mean"])
