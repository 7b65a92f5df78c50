"""How the operations of a step are divided among the cores, and that runs in other threads do not feel it."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from threading import Barrier, Event, Thread
from typing import Any

import pytest
import torch

import kvq_core
from kvq_core.engine.row_part import LayerStep
from kvq_core.engine.rows import Rows
from kvq_core.machine import threads
from kvq_core.models.loader import check_room
from kvq_core.pipeline.compare import compare
from kvq_core.record.events import Encoding
from kvq_core.spec import Lane, parse_spec
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

CORES = 3
LANES = [
    {"label": "kivi", "method": "kivi", "knobs": {"bits": 2}},
    {"label": "squat", "method": "squat", "knobs": {"block_size": 16}},
]


@pytest.fixture
def cores() -> Iterator[None]:
    """As on a machine of three cores, whatever the tests were started with."""
    held = torch.get_num_threads()
    torch.set_num_threads(CORES)
    yield
    torch.set_num_threads(held)


def elsewhere(work: Callable[[], Any]) -> Any:
    """Done in a thread that begins now."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def limits() -> set[str]:
    """The numbers of cores that torch, OpenMP and MKL, where torch has it, would use in this thread."""
    names = ("at::get_num_threads", "omp_get_max_threads", "mkl_get_max_threads")
    told = torch.__config__.parallel_info()
    return {count for name in names for count in re.findall(rf"{name}\(\) : (\d+)", told)}


def test_one_thread_is_one_threads_own(cores: None) -> None:
    with threads.one_thread():
        assert limits() == {"1"}
        assert torch.get_num_threads() not in elsewhere(limits) and elsewhere(torch.get_num_threads) == CORES
        with threads.one_thread(False):
            assert limits() == {"1"}
    assert limits() == {str(CORES)}


def test_shares_run_on_one_core_each_and_leave_no_trace(cores: None) -> None:
    found: list[set[str]] = []
    works = [lambda: found.append(limits())] * CORES
    threads.together(works)
    assert list(threads.in_order(works, CORES)) == [0, 1, 2]
    threads.beside(works[0]).result()
    assert found == [{"1"}] * 7
    assert torch.get_num_threads() == elsewhere(torch.get_num_threads) == CORES


def test_leaving_does_not_wait_for_anothers_work() -> None:
    free, begun = Event(), Event()
    others = threads.in_order([lambda: begun.set() or free.wait()], 1)  # type: ignore[func-returns-value,list-item]
    next(others)
    begun.wait()
    own = threads.in_order([lambda: pytest.fail("begun after it was left")], 1)
    next(own)
    leaving = Thread(target=own.close)  # type: ignore[attr-defined]
    leaving.start()
    leaving.join(30)
    try:
        assert not leaving.is_alive()
    finally:
        free.set()
    assert list(others) == []


def test_a_run_cancelled_while_it_encodes_takes_no_cores_from_later_ones(smollm, cores: None) -> None:
    events = compare(parse_spec({"prompt": "Tell me about tides. " * 8, "max_new_tokens": 2, "lanes": LANES}))
    assert any(isinstance(event, Encoding) for event in events)
    events.close()
    assert torch.get_num_threads() == elsewhere(torch.get_num_threads) == CORES


@pytest.mark.long("programs", sample=0)
def test_runs_at_once_give_what_they_give_alone(smollm, cores: None) -> None:
    specs = [
        parse_spec({"prompt": text * 3, "max_new_tokens": 8, "ignore_eos": True, "lanes": LANES})
        for text in ("The tide tables are kept by hand. ", "A gauge of brass has a paper drum. ")
    ]
    both = Barrier(len(specs))

    def run(spec: kvq_core.ComparisonSpec) -> kvq_core.Record:
        both.wait()
        return kvq_core.run(spec)

    with ThreadPoolExecutor(len(specs)) as pool:
        together = list(pool.map(run, specs))
    for record, spec in zip(together, specs, strict=True):
        alone = kvq_core.run(spec)
        assert record.reference == alone.reference
        for ours, theirs in zip([*record.lanes, record.noise_floor], [*alone.lanes, alone.noise_floor], strict=True):
            assert ours.model_dump(exclude={"timing"}) == theirs.model_dump(exclude={"timing"})


def test_a_run_changes_nothing_of_the_model_it_uses(cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, attended, seen = tiny("llama"), Rows._attended, []

    def state() -> dict[str, dict[str, int]]:
        return {
            f"{name} {kind}": {key: id(value) for key, value in held.items()}
            for name, module in model.model.named_modules()
            for kind, held in [
                ("attributes", vars(module)),
                ("modules", module._modules),
                ("weights", module._parameters),
            ]
        }

    def watched(self: Rows, step: LayerStep) -> object:
        seen.append(state())
        return attended(self, step)

    before = state()
    monkeypatch.setattr(Rows, "_attended", watched)
    run_engine(model, prompt_ids(20), [Lane(label="kivi", method="per_token", knobs={"group_size": 8})], 3)
    assert len(seen) >= 3 and all(during == before for during in [*seen, state()])


def test_a_model_of_half_precision_is_measured_in_the_dtype_others_compute_in(monkeypatch: pytest.MonkeyPatch) -> None:
    config, set_default, defaults = deepcopy(tiny("llama").model.config), torch.set_default_dtype, []
    config.dtype = torch.bfloat16

    def noted(dtype: torch.dtype) -> None:
        defaults.append(dtype)
        set_default(dtype)

    monkeypatch.setattr(torch, "set_default_dtype", noted)
    check_room("a-model", config)
    assert set(defaults) == {torch.float32}
