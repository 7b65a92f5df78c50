"""The GPU benchmark: ``make bench-gpu``. Needs torch, triton, numpy and nothing else of this project's requirements.

Every case is stored in a file of benchmarks/gpu-results as soon as it is done, and a later call goes on after the last
one, because such machines come for minutes; the cases that matter come first, and ``--minutes 9`` begins no more after
nine. A file belongs to a device and to one state of the kernels, this script and the versions: what was measured with
others is not gone on with. ``--tables`` prints what is stored; ``--dry-run`` runs all of it with tiny shapes on the
CPU, which checks this script and measures nothing.
"""

import argparse
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "kernels"))

from aot.fingerprint import kernels_fingerprint
from gpu_baselines import attentions, fp16_calls
from gpu_cases import TOKENS, cases
from gpu_decode_cases import MODELS, STEPS, Step, step_cases
from gpu_decoder import LLAMA_2_7B, LLAMA_3_8B, Decoder, Weights, decoding
from gpu_results import Results, mark
from gpu_setting import Numbers, Setting, Shape
from gpu_tables import head, step_rows, tables
from gpu_timing import Clock, copy_bandwidth, machine

RESULTS = Path(__file__).parent / "gpu-results"
TINY = {"Llama-3.1-8B": Shape(2, 4, 32, 2)}
TINY_TOKENS = (64, 160)
TINY_STEPS = tuple(Step(part, "Llama-3.1-8B", batch, 197) for part in ("decode", "layers", "eager") for batch in (1, 2))
TINY_DECODER = Decoder(2, 64, 4, 2, 32, 96, 128)


class Whole(NamedTuple):
    """A part in which a whole model decodes: its shape, kinds of caches, batches, prompt and new tokens."""

    part: str
    shape: Decoder
    kinds: tuple[str, ...]
    batches: tuple[int, ...]
    prompt: int
    new: int


# What a user waits for; and SQuat's Figure 3, each kind of cache at growing batches until memory runs out.
WHOLE = (
    Whole("generate", LLAMA_3_8B, ("fp16", "kivi", "innerq"), (1, 8), 32768, 48),
    Whole("batch", LLAMA_2_7B, ("fp16", "kivi", "squat", "kivi_dequantized"), (1, 8, 32, 64, 128, 256), 1024, 48),
)

Case = tuple[str, Callable[[Setting], Numbers]]


def main() -> int:
    arguments = _arguments()
    dry = arguments.dry_run
    if not dry and not arguments.tables and not torch.cuda.is_available():
        print("No GPU was found; --dry-run checks the script on a CPU without measuring anything.", file=sys.stderr)
        return 2
    files = sorted(arguments.out.glob("*.jsonl"))
    if arguments.tables:
        print("\n\n".join(tables(file) for file in files) or f"Nothing is stored in {arguments.out}.")
        return 0
    facts = machine("cpu" if dry else "cuda")
    name = "dry-run" if dry else re.sub(r"\W+", "-", facts["device"]).strip("-").lower()
    file = arguments.out / f"{name}-{mark(facts)}.jsonl"
    failed = measure(file, facts, chosen(dry, arguments), 60 * arguments.minutes)
    print(f"\n{tables(file)}\n\nAll of it is in {file}")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the kernels on this machine's GPU.")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where results are kept")
    parser.add_argument(
        "--parts", nargs="*", metavar="PART", help="only these: decode, layers, quantize_pack, batch, ..."
    )
    parser.add_argument("--models", nargs="*", metavar="MODEL", help=f"only these: {', '.join(MODELS)}")
    parser.add_argument("--minutes", type=float, default=1e9, metavar="N", help="begin no more cases after so many")
    parser.add_argument("--tables", action="store_true", help="print what is stored and measure nothing")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU, to check the script")
    return parser.parse_args()


def chosen(dry: bool, arguments: argparse.Namespace) -> list[Case]:
    """The cases in order, those that were asked for."""
    models = {name: shape for name, shape in MODELS.items() if not arguments.models or name in arguments.models}
    models, tokens, steps = (TINY, TINY_TOKENS, TINY_STEPS) if dry else (models, TOKENS, STEPS)
    generate, batch = (list(_wholes(whole, dry)) for whole in WHOLE)
    every = [*step_cases(models, steps), *generate, *cases(models, tokens), *batch]
    return [case for case in every if not arguments.parts or case[0].split("/")[0] in arguments.parts]


def measure(file: Path, facts: dict[str, Any], todo: list[Case], seconds: float) -> int:
    """Measure what is not stored yet and print decode steps as they come; how many cases failed."""
    device = "cpu" if facts["device"] == "cpu" else "cuda"
    clock = Clock(device, runs=2, rounds=2, warm_up=1) if device == "cpu" else Clock(device)
    facts |= {"kernels": kernels_fingerprint(), "copy_bandwidth": copy_bandwidth(clock)}
    results, setting = Results(file, facts), Setting(clock, facts["copy_bandwidth"])
    start, failed = time.perf_counter(), 0
    print(head(), flush=True)
    for index, (case, run) in enumerate(todo, 1):
        began = time.perf_counter()
        if began - start > seconds:
            print(f"{len(todo) - index + 1} cases are left for another call", file=sys.stderr)
            break
        try:
            numbers = results.get(case, lambda run=run: run(setting))
            for row in step_rows(case, numbers):
                print(row, flush=True)
        except Exception:  # the machine may be here for minutes: the other cases come first
            failed += 1
            traceback.print_exc()
        if device != "cpu":
            torch.cuda.empty_cache()
        print(f"{index}/{len(todo)} {case} {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    return failed


def _wholes(whole: Whole, dry: bool) -> Iterator[Case]:
    """Each kind of cache at each batch; weights are made once."""
    if dry:
        whole = whole._replace(shape=TINY_DECODER, batches=whole.batches[:2], prompt=70, new=3)
    made: list[Weights] = []

    def run(s: Setting, kind: str, batch: int) -> Numbers:
        if not made:
            made.append(Weights.random(whole.shape, s.device, torch.float32 if dry else torch.float16))
        try:
            attend = attentions()[_fastest(s, batch)]
            return decoding(made[0], whole.shape, kind, batch, whole.prompt, whole.new, s.bandwidth, attend)
        except torch.OutOfMemoryError:
            return {"out_of_memory": 1.0}
        finally:
            if (kind, batch) == (whole.kinds[-1], whole.batches[-1]):
                made.clear()  # room for the next part's

    @cache
    def _fastest(s: Setting, batch: int) -> str:
        """Torch's attention that reads such an fp16 cache fastest."""
        shape, size = whole.shape, (batch, whole.shape.kv_heads, whole.prompt, whole.shape.head_dim)
        q = s.random(batch, shape.heads, 1, shape.head_dim)
        found = s.clock.race(fp16_calls(q, [(s.random(*size), s.random(*size))]))
        return min(found, key=lambda name: found[name]["ms"])

    for batch in whole.batches:
        for kind in whole.kinds:
            yield f"{whole.part}/{kind}/{batch}", lambda s, kind=kind, batch=batch: run(s, kind, batch)


if __name__ == "__main__":
    sys.exit(main())
