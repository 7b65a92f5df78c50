"""What another processor's rounding moves: cells of the reference table, with this one's instructions and with SSE.

Each cell is computed twice, each time in a process of its own, with what PyTorch, MKL and oneDNN take by themselves and
with what every x86-64 processor has. A figure is the mean KLD of a lane over the forced tokens. Writes
``instructions.json``, a part a model.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks.measured import HERE, keep
from kvq_core.models import available_models
from kvq_core.pipeline.compare import compare
from kvq_core.record.arrays import array
from kvq_core.record.events import Finished
from kvq_core.spec import DEFAULT_MODEL
from kvq_core.studies.cells import Cell, plan
from kvq_core.studies.table import FACTOR, NEAR, SMALL, table_spec

SSE = {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "DNNL_MAX_CPU_ISA": "SSE41"}


def cells_of(model: str) -> list[Cell]:
    """The first cell of the table of each prompt, in its order."""
    cells = plan(table_spec(model=model), lambda *_: None).cells
    return list({cell.prompt.id: cell for cell in reversed(cells)}.values())[::-1]


def compute(model: str, number: int, out: str) -> None:
    finished = next(event for event in compare(cells_of(model)[number].spec) if isinstance(event, Finished))
    found = {lane.label: array(finished.arrays, f"lane/{at}/kld") for at, lane in enumerate(finished.record.lanes)}
    every = {label: kld for label, kld in found.items() if kld is not None}
    np.savez(out, **every, token_ids=np.array(finished.record.reference.token_ids))


def computed(model: str, number: int, settings: dict[str, str]) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "cell.npz")
        command = [sys.executable, __file__, "--model", model, "--compute", str(number), "--out", out]
        subprocess.run(command, env={**os.environ, **settings}, check=True)
        with np.load(out) as found:
            return dict(found)


def moved(own: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, object]:
    """How far lanes' mean KLDs lie apart, as shares of the larger one; of those under SMALL nats the count."""
    same = np.array_equal(own.pop("token_ids"), other.pop("token_ids"))
    pairs = {label: (float(own[label].mean()), float(other[label].mean())) for label in own if label in other}
    told = {label: pair for label, pair in pairs.items() if max(pair) >= SMALL}
    shares = {label: 1 - min(pair) / max(pair) for label, pair in told.items()}
    most = max(shares, key=lambda label: shares[label])
    return {
        "same_answer": same,
        "lanes": len(pairs),
        "under_small": len(pairs) - len(told),
        "median": float(np.median([*shares.values()])),
        "over_near": sum(share > NEAR for share in shares.values()),
        "over_fifth": sum(share > 0.2 for share in shares.values()),
        "over_factor": sum(share > 1 - 1 / FACTOR for share in shares.values()),
        "most": [most, *told[most]],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--cells", type=int, default=3, help="one of each prompt, the first ones")
    parser.add_argument("--compute", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=HERE / "instructions.json")
    args = parser.parse_args()
    if args.compute is not None:
        compute(args.model, args.compute, str(args.out))
        return 0
    title = next(choice.title for choice in available_models() if choice.id == args.model)
    rows = []
    for number, cell in enumerate(cells_of(args.model)[: args.cells]):
        found = moved(computed(args.model, number, {}), computed(args.model, number, SSE))
        rows.append({"prompt": cell.prompt.id, "new_tokens": cell.spec.max_new_tokens} | found)
        print(rows[-1], flush=True)
        keep(args.out, args.model, {"title": title, "own": torch.backends.cpu.get_cpu_capability(), "cells": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
