"""``make kernels-report``: what the kernels were compiled to, form by form, for GPUs that are not here.

Prints a table and writes benchmarks/kernels.json. Counted are instructions of the machine code (SASS) in one turn of
the main loop of a kernel, for each element of the cache that a thread has in that turn. Nothing here was measured:
what is said of speed follows from the counts, a GPU's issue slots and its bandwidth.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.aot.compiler import Compiled, compile_for
from benchmarks.aot.fingerprint import kernels_fingerprint
from benchmarks.aot.forms import CAPABILITIES, DIMS, METHODS, SHARED, Form, decode_forms, quantize_forms
from benchmarks.aot.limits import ASSUMED, gain, share
from benchmarks.aot.method_forms import METHOD_OPERATIONS, method_forms
from benchmarks.aot.method_forms import SHARED as METHOD_HEADS
from benchmarks.aot.versions import Unavailable, environment, under

RESULT = Path(__file__).resolve().parents[1] / "kernels.json"
SLOW = RESULT.parents[1] / "presets" / "kernels" / "slow.json"  # what of it the page tells
OTHERS = ("3.6", "3.4")  # the newest and the oldest that torch 2.8 to 2.11 ship
NAMED = ("method", "head_dim", "query_heads", "capability")
KEPT = (*NAMED, "instructions", "most", "spills", "registers", "bytes_a_load", "asynchronous")  # of others
HEAD = ("form", "instr/el", "spills", "registers", "bytes a load", "16-byte copies", "other copies", "waiting loads")


def row(form: Form, capability: int) -> dict[str, Any]:
    """What one form is for one compute capability."""
    made = compile_for(form.launch, capability, form.tile)
    loop, count = made.loop, instructions(form, made)
    speed = {"share": share(count, form.nbytes, capability), "gain": gain(count, form.nbytes, capability)}
    return {
        "form": form.name,
        "operation": form.operation,
        "method": form.method,
        "head_dim": form.head_dim,
        "query_heads": form.shared,
        "capability": capability,
        "kernel": form.launch.kernel.__name__,
        "instructions": round(count, 2),
        "most": form.most,
        "spills": made.spills,
        "stack_bytes": made.stack,
        "registers": made.registers,
        "shared_bytes": made.shared,
        "bytes_a_load": round(loop.bytes_a_load, 1),
        "copies": loop.copies,
        "loads": loop.loads,
        "asynchronous": loop.asynchronous,
        "products": loop.products,
        "barriers": loop.barriers,
        "bytes_an_element": form.nbytes,
        **speed,
    }


def instructions(form: Form, made: Compiled) -> float:
    """For each element of the cache; what lies around a loop of several turns included."""
    count = made.loop.instructions * form.turns + (made.outside if form.turns > 1 else 0)
    return count / made.elements


def rows(forms: Iterable[Form]) -> Iterator[dict[str, Any]]:
    for form in forms:
        for capability in CAPABILITIES:
            yield row(form, capability)


def line(found: dict[str, Any]) -> str:
    copies, loads = found["copies"], found["loads"]
    other = sum(count for size, count in copies.items() if size != 16)
    cells = (
        f"{found['form']}/sm_{found['capability']}",
        f"{found['instructions']:.2f}",
        str(found["spills"]),
        str(found["registers"]),
        f"{found['bytes_a_load']:.1f}",
        str(copies.get(16, 0)),
        str(other),
        str(sum(loads.values())),
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="NAME", help="only these, at all sizes")
    parser.add_argument("--dims", nargs="+", type=int, default=DIMS, metavar="D", help="only these head_dims")
    parser.add_argument("--heads", nargs="+", type=int, default=SHARED, metavar="N", help="only so many query heads")
    parser.add_argument("--rows", action="store_true", help="print decode attention's rows as JSON, and write nothing")
    parser.add_argument("--triton", metavar="VERSION", help="of this version, taken from pip once: 3.4, newest, ...")
    parser.add_argument("--others", nargs="*", default=OTHERS, metavar="VERSION", help="told beside, decode alone")
    arguments = parser.parse_args()
    if arguments.triton:
        sys.exit(under(arguments.triton, [a for a in sys.argv[1:] if a not in ("--triton", arguments.triton)]))
    decode = decode_forms(arguments.methods, dims=arguments.dims, shared=arguments.heads)
    if arguments.rows:
        print(json.dumps(list(rows(decode))))
        return
    print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
    found = []
    for each in rows([*decode, *quantize_forms(), *method_forms()]):
        print(line(each), flush=True)
        found.append(each)
    chosen = [
        "--methods",
        *arguments.methods,
        "--dims",
        *map(str, arguments.dims),
        "--heads",
        *map(str, arguments.heads),
    ]
    written = _result(found) | {"others": dict(_others(arguments.others, chosen))}
    RESULT.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    SLOW.write_text(json.dumps(slow(written), indent=1) + "\n", encoding="utf-8")


def _others(versions: Iterable[str], chosen: list[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """What decode attention is with other versions of Triton, each in a process of its own; what pip does not give is
    left out, and told."""
    for version in versions:
        try:
            env = environment(version)
        except Unavailable as reason:
            print(f"Triton {version} cannot be had: {reason}")
            continue
        command = [sys.executable, __file__, "--rows", *chosen]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        yield version, [{name: each[name] for name in KEPT} for each in json.loads(done.stdout.splitlines()[-1])]


def _result(found: list[dict[str, Any]]) -> dict[str, Any]:
    import triton

    return {
        "date": datetime.now(UTC).date().isoformat(),
        "fingerprint": kernels_fingerprint(),
        "triton": triton.__version__,
        "counted": "SASS instructions of the main loop, a thread and element",
        "assumed": ASSUMED,
        "forms": found,
    }


def slow(result: dict[str, Any]) -> dict[str, Any]:
    """Operations that read a cache more slowly, by count, than the best fp16 attention: how many times, by chip; at as
    many query heads a KV head as most models have."""
    told: dict[str, dict[str, Any]] = {}
    for each in result["forms"]:
        if each["operation"] in METHOD_OPERATIONS and each["query_heads"] == METHOD_HEADS:
            here = told.setdefault(each["operation"], {"method": each["method"], "instructions": {}, "slower": {}})
            here["instructions"][f"sm_{each['capability']}"] = each["instructions"]
            here["slower"] |= {chip: round(1 / gain, 2) for chip, gain in each["gain"].items()}
    return {name: result[name] for name in ("date", "fingerprint", "assumed")} | {"operations": told}


if __name__ == "__main__":
    main()
