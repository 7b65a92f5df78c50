"""Triton kernels without a GPU: numerics in the interpreter, and every kernel compiled ahead of time."""

import inspect
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from kvq_kernels.attention import decode_attention
from kvq_kernels.dispatch import KernelError, paths_taken
from kvq_kernels.grouped import MODES, Grid, quantize_pack
from kvq_kernels.launch import Launch, programs_at_once, record_launches, run
from kvq_kernels.layout import Layout
from kvq_kernels.step import decode_step
from kvq_kernels.store import Store

from benchmarks.aot.compiler import compile_for, parse_for
from tests.support.campaigns import whole
from tests.support.kernel_launches import called_by_kernels, kernels, launches, smallest_launches

ROOT = Path(__file__).parents[2]
CHECKS = ROOT / "tests" / "kernels"
SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes a program may use
HOT = {"packed_scores_kernel", "packed_values_kernel", "quantize_pack_kernel", "quantize_columns_kernel"}
# Bytes of decode attention put aside, asymmetric and hybrid; most where a group is a whole head of 128 channels.
MOST_STACK = (192, 0)
# Instructions an element as compiled for compute capability 9.0: (asymmetric or symmetric, hybrid). Quantizing took 88
# and 177 with IEEE divisions and groups spread over threads.
MOST_WORK = {
    "decode_blocks_kernel": (3, 6),
    "quantize_pack_kernel": (23, 35),
    "quantize_columns_kernel": (23, 37),
}


@pytest.mark.compiler
@pytest.mark.long("interpret")
@pytest.mark.timeout(3600)
def test_numerics_in_the_interpreter(record_property, passed_before):
    """In a process of its own: Triton reads TRITON_INTERPRET when it is imported. A sample is every sixteenth check."""
    command = [sys.executable, "-m", "pytest", "-c", "pytest.ini", "-q", "--timeout=0"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "EVERY": "1" if whole() else "16"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=CHECKS)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout
    record_property("checks", int(re.search(r"(\d+) passed", done.stdout)[1]))
    passed_before()


@pytest.fixture(scope="module")
def recorded():
    return launches()


def test_every_kernel_is_launched_by_an_operation(recorded):
    functions = kernels()
    launched = {entry.kernel.__name__ for entry in recorded}
    assert len(launched) >= 12
    assert launched == {name for name in functions if name.endswith("_kernel")}
    assert set(functions) - launched <= called_by_kernels(functions), "compiled by nobody: record a launch of it"


def test_no_function_calls_itself():
    """Triton 3.4 would look for what it calls forever."""
    sources = {name: inspect.getsource(found.fn) for name, found in kernels().items()}
    assert [name for name, text in sources.items() if len(re.findall(rf"(?<![\w.]){name}\(", text)) > 1] == []


@pytest.mark.compiler
@pytest.mark.long("compile")
def test_sizes_of_one_are_constants_on_a_gpu_and_every_kernel_takes_them(recorded, passed_before):
    """The interpreter makes none of them, so it also takes what would fail there, such as ``tokens.to(tl.int64)``. A
    sample is one launch of every kernel and every fourth of all."""
    found = smallest_launches()
    assert {entry.kernel.__name__ for entry in found} == {entry.kernel.__name__ for entry in recorded}
    for entry in found if whole() else [*one_of_each(found), *found[::4]]:
        assert f"@{entry.kernel.__name__}" in parse_for(entry, 90)
    passed_before()


@pytest.mark.compiler
@pytest.mark.long("compile")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("capability", sorted(SHARED))
def test_launches_compile_without_spills(capability, recorded, record_property, passed_before):
    chosen = recorded if whole() else sample(recorded, capability)
    record_property("launches", len(chosen))
    for entry in chosen:
        most = most_work(entry) if capability == 90 else None
        used = compile_for(entry, capability)
        record_property(f"{entry.kernel.__name__}-{capability}", str(used))
        print(f"sm_{capability} {entry.kernel.__name__}: {used}")
        assert used.shared <= SHARED[capability] and used.registers <= 255, (entry.kernel.__name__, used)
        if entry.kernel.__name__ in HOT:
            assert used.stack == 0, f"{entry.kernel.__name__} spills: {used}"
        if entry.kernel.__name__ == "decode_blocks_kernel" and most is not None:
            assert used.stack <= MOST_STACK[MODES[entry.constants["K_MODE"]] == "hybrid"], used
        assert most is None or 0 < used.work <= most, (entry.kernel.__name__, used)
    passed_before()


def sample(recorded, capability):
    """All whose work is limited, which is known of one capability, but decode attention without a new token, which
    test_kernels_aot.py compiles; for the other one launch of every other kernel."""
    if capability == 90:
        limited = [entry for entry in recorded if most_work(entry) is not None]
        return [entry for entry in limited if entry.constants.get("FRESH", True)]
    return [entry for entry in one_of_each(recorded) if entry.kernel.__name__ not in MOST_WORK]


def one_of_each(found):
    """A launch of every kernel."""
    return list({entry.kernel.__name__: entry for entry in found}.values())


def most_work(entry):
    """Of a launch that is limited, or None."""
    constants = entry.constants
    if entry.kernel.__name__ not in MOST_WORK:
        return None
    mode = constants.get("MODE", constants.get("K_MODE"))
    return MOST_WORK[entry.kernel.__name__][MODES[mode] == "hybrid"]


def test_a_decode_step_reads_nothing_back_from_the_device():
    """Tensors of the meta device have no values to wait for, so that a step can be captured as a CUDA graph."""
    layouts = Layout(Grid(2), "tokens", 0, 0, 32), Layout(Grid(2), "channels", 0, 32, 1)
    x = torch.empty(1, 2, 100, 64, device="meta")
    with record_launches() as found:
        stores = [Store.empty(x, layout, side) for layout, side in zip(layouts, ("keys", "values"), strict=True)]
        for store in stores:
            store.fill(x)
        q = torch.empty(1, 4, 1, 64, device="meta")
        for _ in range(40):
            decode_step(q, q[:, :2], q[:, :2], *stores, 0.1)
        decode_attention(q, *stores, 0.1)
    launched = {entry.kernel.__name__ for entry in found}
    assert launched >= {"decode_blocks_kernel", "combine_splits_kernel", "finish_step_kernel"}


def test_a_step_is_the_same_two_launches_300_times():
    """Of attention, and of what enters the token and packs: no argument, pointer or constant changes while the cache
    grows, so that a captured step stays true."""
    layouts = Layout(Grid(2), "tokens", 0, 0, 32), Layout(Grid(2), "channels", 0, 32, 1)
    x, q = torch.randn(1, 2, 100, 64), torch.randn(1, 4, 1, 64).half()
    stores = [
        Store.empty(x, layout, side, path="torch") for layout, side in zip(layouts, ("keys", "values"), strict=True)
    ]
    for store in stores:
        store.fill(x)
    out, fresh, forms = torch.empty_like(q), q[:, :2].clone(), set()
    for _ in range(300):
        with record_launches() as found:
            decode_step(q, fresh, fresh, *stores, 0.1, "triton", out=out)
        for entry in found:
            given = [(name, getattr(v, "data_ptr", lambda v=v: v)()) for name, v in entry.arguments.items()]
            forms.add((entry.kernel.__name__, str(given), str(entry.constants), entry.how))
    assert {name for name, *_ in forms} == {"decode_blocks_kernel", "finish_step_kernel"} and len(forms) == 2
    assert stores[0].pool.segments[1:] and [store.packed_tokens for store in stores] == [384, 368]


def test_a_kernel_runs_on_the_gpu_that_its_tensors_are_on(monkeypatch):
    """And not on the current one: layers of a large model lie on several."""
    on, tensors = [], {"x": torch.zeros(2), "count": 3, "none": None}

    class Kernel:
        def __getitem__(self, grid):
            return lambda **arguments: on.append((guarded[-1], grid, arguments["num_warps"]))

    class Guard:
        def __init__(self, tensor):
            self.tensor = tensor

        def __enter__(self):
            guarded.append(self.tensor)

        def __exit__(self, *error):
            guarded.append(None)

    guarded = [None]
    monkeypatch.setattr(torch.cuda, "device_of", Guard)
    run(Kernel(), (4,), Launch(16, warps=2), {"count": 1, **tensors}, {})
    assert on == [(tensors["x"], (4,), 2)] and guarded[-1] is None


def test_as_many_programs_are_launched_as_run_at_once(monkeypatch):
    """By the registers and the shared memory of what was compiled, which is asked once."""
    made = []

    class Made:
        def __init__(self, registers, shared):
            self.n_regs, self.metadata = registers, SimpleNamespace(shared=shared)

        def _init_handles(self):
            made.append(self)

    class Kernel:
        def __init__(self, registers, shared):
            self.made = Made(registers, shared)

        def warmup(self, grid, **given):
            assert given == {"x": there, "count": 3, "C": 4, "num_warps": 1, "num_stages": 2, "maxnreg": 184}
            return self.made

    there = SimpleNamespace(is_cuda=True, device="a GPU")
    room = SimpleNamespace(multi_processor_count=100, shared_memory_per_multiprocessor=228 << 10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: room)
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: nullcontext())
    how, given = Launch(64, 1, registers=184), ({"x": there, "count": 3}, {"C": 4}, there)
    kernel = Kernel(184, 11264)
    assert [programs_at_once(kernel, how, *given) for _ in range(2)] == [800, 800] and len(made) == 1
    assert programs_at_once(Kernel(161, 11264), how, *given) == 1200
    assert programs_at_once(Kernel(100, 30 << 10), how, *given) == 700, "shared memory, and what goes with a program"
    assert programs_at_once(Kernel(100, 300 << 10), how, *given) == 100
    here = torch.zeros(1)
    assert programs_at_once(kernel, how, {"x": here}, {}, here) == 8 * 2


def test_asking_for_triton_where_it_cannot_run_is_an_error():
    x = torch.zeros(1, 32, 32)
    with pytest.raises(KernelError, match="the tensors are on cpu.*path = 'auto' or 'torch'"):
        quantize_pack(x, Grid(2), "tokens", "triton")
    with pytest.raises(KernelError, match="'cuda' is not one of auto, triton, torch"):
        quantize_pack(x, Grid(2), "tokens", "cuda")


def test_the_automatic_choice_says_what_it_took():
    with paths_taken() as taken:
        quantize_pack(torch.zeros(1, 32, 32), Grid(2), "tokens")
    assert taken == {"quantize_pack": {"torch"}}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"bits": 5}, "bits = 5: allowed are 1, 2, 3, 4, 8"),
        ({"bits": 2, "mode": "both"}, "mode = 'both'"),
        ({"bits": 2, "group_size": 24, "mode": "hybrid"}, "multiples of 32"),
    ],
)
def test_impossible_grids_are_refused(values, words):
    with pytest.raises(KernelError, match=words):
        Grid(**values)
