"""Memory: what there is, what is refused for want of it, and what is free again after a run."""

import platform
import subprocess
import sys
import threading

import psutil
import pytest
import torch
from transformers import LlamaConfig

import app
from kvq_core.cli.main import main
from kvq_core.errors import LimitError, MethodError, ModelError
from kvq_core.machine import memory
from kvq_core.models.support import check_room
from kvq_core.pipeline.compare import compare
from tests.ui.service.test_limits import spec


def test_the_containers_limit_counts(monkeypatch, tmp_path):
    group = tmp_path / "memory" / "box"
    group.mkdir(parents=True)
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "_groups", lambda: iter([group, tmp_path / "none"]))
    plenty = memory.free_bytes()
    assert plenty == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    for limit, used, stat in (
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file 500"),
        ("memory.max", "memory.current", "anon 1\ninactive_file 500"),
    ):
        (group / limit).write_text("10000\n")
        (group / used).write_text("4000\n")
        (group / "memory.stat").write_text(stat)
        assert memory.free_bytes() == 10000 - 4000 + 500
        (group / limit).unlink()
    (group / "memory.max").write_text("max\n")
    assert memory.free_bytes() > 10**6


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that is not there")
def test_a_gpu_that_cannot_be_asked_refuses_nothing():
    assert memory.free_bytes("cuda:0") == memory.UNKNOWN


def test_a_gpu_says_what_driver_and_torch_have(monkeypatch):
    for name, value in (("mem_get_info", (700, 1000)), ("memory_reserved", 200), ("memory_allocated", 150)):
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert memory.free_bytes("cuda:0") == 750


def test_groups_are_read_from_the_kernels_list():
    for group in memory._groups():
        assert group == memory.CGROUPS or memory.CGROUPS in group.parents


def test_a_model_that_does_not_fit_is_refused_before_its_weights_are_read():
    tiny = LlamaConfig(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4)
    check_room("tiny", tiny)
    huge = LlamaConfig(hidden_size=65536, intermediate_size=262144, num_hidden_layers=40, num_attention_heads=64)
    with pytest.raises(
        ModelError, match=r"'huge' needs [0-9]{5,}\.. GB for its weights in float32, and .* GB of memory"
    ):
        check_room("huge", huge)


def test_the_command_line_warns_and_goes_on(monkeypatch, capsys, smollm, tmp_path):
    file = tmp_path / "spec.json"
    file.write_text(spec("Name a tree.", max_new_tokens=2, capture={"detail": "off"}).model_dump_json())
    monkeypatch.setattr("kvq_core.pipeline.estimate.room_for", lambda needed, device: 10**6)
    assert main(["compare", "--spec", str(file)]) == 0
    said = capsys.readouterr().err
    assert said.startswith("warning: This run needs about 0.") and "0.00 GB are free" in said


def test_out_of_memory_is_told_apart():
    assert memory.is_out_of_memory(torch.OutOfMemoryError("x")) and memory.is_out_of_memory(MemoryError())
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    assert memory.is_out_of_memory(caught.value) and not memory.is_out_of_memory(RuntimeError("shape mismatch"))


class Held:
    """Something large; counts those alive."""

    alive = 0

    def __init__(self):
        Held.alive += 1

    def __del__(self):
        Held.alive -= 1


def test_what_failed_work_held_is_free_when_the_message_arrives(monkeypatch):
    def work():
        held = Held()
        yield held and 1
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    with pytest.raises(LimitError, match="The GPU's memory ran out"):
        with memory.memory_errors_as_limits():
            for _ in work():
                pass
    assert Held.alive == 0
    with pytest.raises(MethodError), memory.memory_errors_as_limits():
        raise MethodError("not about memory")


@pytest.mark.parametrize("place", ["encode", "settle", "forward"])
def test_a_run_that_runs_out_of_memory_stops_and_the_next_one_works(monkeypatch, place, smollm):
    given = spec("Name a tree.", max_new_tokens=4, capture={"detail": "off"})
    where = {
        "encode": "kvq_core.engine.cache.LaneCache.of_prompt",
        "settle": "kvq_core.engine.rows.Rows.store_tokens",
        "forward": "kvq_core.engine.rows.Rows.__call__",
    }[place]

    def full(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with monkeypatch.context() as broken:
        broken.setattr(where, full)
        with pytest.raises(LimitError, match="memory ran out and the run was stopped"):
            list(compare(given))
    assert list(compare(given))[-1].record.lanes[0].status == "done"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_freed_memory_goes_back_to_the_system():
    blocks = [bytearray(100_000) for _ in range(2000)]  # each below what the allocator maps by itself
    held = blocks.pop()  # the last, above all others: the arena cannot shrink from its end
    del blocks
    before = psutil.Process().memory_info().rss
    memory.release_memory()
    assert psutil.Process().memory_info().rss < before - 100e6 and len(held) == 100_000


ARENAS = """
import ctypes, re, sys, tempfile, threading
if sys.argv[1] == "shared":
    from kvq_core.machine import memory
    memory.share_arena()
ready, done = threading.Barrier(9), threading.Event()
def work():
    held = bytearray(100_000)
    ready.wait()
    done.wait()
for _ in range(8):
    threading.Thread(target=work).start()
ready.wait()
libc = ctypes.CDLL(None)
libc.fopen.restype, libc.fclose.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
with tempfile.NamedTemporaryFile() as told:
    file = libc.fopen(told.name.encode(), b"w")
    libc.malloc_info(0, ctypes.c_void_p(file))
    libc.fclose(file)
    print(len(re.findall(b"<heap nr=", told.read())))
done.set()
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_the_threads_of_a_server_share_one_arena():
    def arenas(how: str) -> int:
        told = subprocess.run([sys.executable, "-c", ARENAS, how], check=True, capture_output=True, text=True)
        return int(told.stdout)

    assert arenas("each its own") > 1 and arenas("shared") == 1


def test_a_server_shares_it_before_it_starts_threads(monkeypatch, capsys):
    running = []
    monkeypatch.setattr(app, "share_arena", lambda: running.append(threading.active_count()))
    monkeypatch.setattr(app, "configure", lambda found: None)  # which would write to this test's stderr ever after
    monkeypatch.setenv("KVQ_STORE", "nonsense://runs")
    before = threading.active_count()
    assert app.main() == 2 and "nonsense" in capsys.readouterr().err and running == [before]
