"""What profile.json and tuning.json beside a device's results tell: taken by hand while kernels were tuned, each with
the kernels that it is of."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.aot.fingerprint import kernels_fingerprint
from benchmarks.by_kernel import NAMES
from benchmarks.measured import table
from kvq_core.packed.gpus import CHANGED

STALLS = {"waiting for a result of fixed latency": "wait", "for memory": "long_sb"}
HEAD_PROFILE = (
    "Cache | Kernels | us | Registers | Warps a processor | Issue slots used, % | Of the memory's bandwidth, % | "
    "Instructions of a turn | " + " | ".join(f"Samples of it {name}, %" for name in STALLS)
)
HEAD_TUNED = (
    "Case | Cache | Before: ms | times as fast as fp16 | Now: ms | of a read of as many bytes | times as fast as fp16"
)


def since(*kernels: str) -> str:
    """What is said behind numbers of kernels of which some are not the present ones."""
    return "" if set(kernels) == {kernels_fingerprint()} else f" {CHANGED}"


def profiled(folder: Path, device: str) -> Iterator[str]:
    """What a profiler saw of a step on that device."""
    seen = _of(folder / "profile.json", device)
    if not seen:
        return
    rows = []
    for each in seen["profiles"]:
        loop = each["main_loop"]
        samples = {name: f"{100 * loop['samples'].get(key, 0):.0f}" for name, key in STALLS.items()}
        rows.append(
            [
                NAMES[each["cache"]],
                each["kernels"][:8],
                f"{each['us']:.0f}",
                f"{each['registers']:.0f}",
                f"{each['warps_a_processor']:.1f}",
                f"{100 * each['issue_slots']:.0f}",
                f"{each['dram_percent']:.0f}",
                str(loop["instructions"]),
                *samples.values(),
            ]
        )
    changed = since(*(each["kernels"] for each in seen["profiles"]))
    yield f"A profile ({seen['step']}; {seen['with']}).{changed}"
    yield table(HEAD_PROFILE, *rows)


def tuned(folder: Path, device: str) -> Iterator[str]:
    """Decode steps before and after the last change of the kernels, and what was tried beside it."""
    told = _of(folder / "tuning.json", device)
    if not told:
        return
    yield (
        f"The kernels {told['kernels'][:8]} beside those before them, {told['before'][:8]}, with torch {told['torch']} "
        f"and Triton {told['triton']}; {told['with']}; fp16 by the fastest of torch's attentions in the same "
        f"turns.{since(told['kernels'])}"
    )
    rows = []
    for each in told["cases"]:
        before, now = each["before"], each["now"]
        rows.append(
            [
                _case(each),
                NAMES[each["cache"]],
                f"{before['ms']:.4f}",
                f"{before['fp16_ms'] / before['ms']:.2f}",
                f"{now['ms']:.4f}",
                f"{now['read_ms'] / now['ms']:.2f}",
                f"{now['fp16_ms'] / now['ms']:.2f}",
            ]
        )
    yield table(HEAD_TUNED, *rows)
    cases = list(dict.fromkeys(_case(each) for each in told["cases"]))
    yield f"What was tried of {NAMES[told['tried_of']]}, ms:"
    yield table(
        " | ".join(["Tried", *cases]), *([each["what"], *map("{:.4f}".format, each["ms"])] for each in told["tried"])
    )


def _case(each: dict[str, Any]) -> str:
    return f"{each['model']}, batch {each['batch']}, {each['tokens']:,} tokens"


def _of(file: Path, device: str) -> dict[str, Any]:
    """What a file says of a device; empty where it says nothing."""
    told = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return told if told.get("device") == device else {}
