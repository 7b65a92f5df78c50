"""The GPU benchmark: ``make bench-gpu``. Needs torch, triton, numpy and nothing else of this project's requirements.

Every case is stored in benchmarks/gpu-results/DEVICE as soon as it is done, and a later call goes on after the last
one, because such machines come for minutes. ``--tables`` prints what is stored; ``--dry-run`` runs all of it with tiny
shapes on the CPU, which checks this script and measures nothing.
"""

import argparse
import json
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "kernels"))

from gpu_cases import MODELS, TOKENS, cases
from gpu_decoder import LLAMA_2_7B, Decoder, Weights, decoding
from gpu_setting import Numbers, Setting, Shape
from gpu_tables import tables
from gpu_timing import Clock, copy_bandwidth, machine

RESULTS = Path(__file__).parent / "gpu-results"
TINY = {"Llama-3.1-8B": Shape(2, 4, 32)}
TINY_TOKENS = (65, 96, 128, 160, 192, 224)
TINY_DECODER = Decoder(2, 64, 4, 2, 32, 96, 128)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
KINDS = ("fp16", "kivi", "squat", "kivi_dequantized")
PROMPT, NEW = 1024, 48


def main() -> int:
    arguments = _arguments()
    device = "cpu" if arguments.dry_run else "cuda"
    if not arguments.dry_run and not torch.cuda.is_available():
        print("No GPU was found; --dry-run checks the script on a CPU without measuring anything.", file=sys.stderr)
        return 2
    name = "dry-run" if arguments.dry_run else re.sub(r"\W+", "-", torch.cuda.get_device_name(0)).strip("-").lower()
    folder = arguments.out / name
    failed = 0 if arguments.tables else _measure(folder, device, arguments.parts)
    print(tables(folder))
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the kernels on this machine's GPU.")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where results are kept")
    parser.add_argument(
        "--parts", nargs="*", default=[], metavar="PART", help="only these: decode_attention, batch, ..."
    )
    parser.add_argument("--tables", action="store_true", help="print what is stored and measure nothing")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU, to check the script")
    return parser.parse_args()


def _measure(folder: Path, device: str, parts: list[str]) -> int:
    """Measure what is not stored yet; how many cases failed."""
    dry = device == "cpu"
    clock = Clock(device, runs=2, warm_up=1) if dry else Clock(device)
    facts = _stored(folder, "machine", lambda: machine(device) | {"copy_bandwidth": copy_bandwidth(clock)})
    models, tokens = (TINY, TINY_TOKENS) if dry else (MODELS, TOKENS)
    setting = Setting(clock, facts["copy_bandwidth"], models, tokens)
    todo = [(case, lambda run=run: run(setting)) for case, run in cases(models, tokens)]
    todo += list(_batches(device, facts["copy_bandwidth"]))
    todo = [entry for entry in todo if not parts or entry[0].split("/")[0] in parts]
    failed = 0
    for index, (case, run) in enumerate(todo, 1):
        began = time.perf_counter()
        try:
            _stored(folder, case, run)
        except Exception:  # the machine may be here for minutes: the other cases come first
            failed += 1
            traceback.print_exc()
        print(f"{index}/{len(todo)} {case} {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    return failed


def _batches(device: str, bandwidth: float) -> Iterator[tuple[str, Callable[[], Numbers]]]:
    """SQuat's Figure 3: each kind of cache at growing batches until memory runs out; the weights are made once."""
    dry = device == "cpu"
    shape, batches = (TINY_DECODER, (1, 2)) if dry else (LLAMA_2_7B, BATCHES)
    prompt, new = (70, 3) if dry else (PROMPT, NEW)
    made: list[Weights] = []

    def run(kind: str, batch: int) -> Numbers:
        if not made:
            made.append(Weights.random(shape, device, torch.float32 if dry else torch.float16))
        try:
            return decoding(made[0], shape, kind, batch, prompt, new, bandwidth)
        except torch.OutOfMemoryError:
            return {"out_of_memory": 1.0}

    for kind in KINDS:
        for batch in batches:
            yield f"batch/{kind}/{batch}", lambda kind=kind, batch=batch: run(kind, batch)


def _stored(folder: Path, case: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The stored result of a case, or a new one, written aside and renamed so that no half of it is ever found."""
    file = folder / f"{case.replace('/', '--')}.json"
    if file.is_file():
        return json.loads(file.read_text())
    found = run()
    folder.mkdir(parents=True, exist_ok=True)
    aside = file.with_suffix(".part")
    aside.write_text(json.dumps(found, indent=1))
    aside.rename(file)
    return found


if __name__ == "__main__":
    sys.exit(main())
