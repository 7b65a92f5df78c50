"""How long a tiny model of each kind takes to be loaded and to run four lanes. Writes architecture_times.json here.

    python benchmarks/architecture_times.py [KIND ...]

The model is read from a folder with the bundled model's tokenizer, as ``compare`` reads it: loading looks at what its
layers do, the run captures. CPU seconds, of one thread: how busy the machine is does not move them.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.architectures import CONFIGS, RESULTS, sized
from kvq_core.errors import ModelError
from kvq_core.models import load
from kvq_core.models.loader import release
from kvq_core.pipeline.compare import compare_on
from kvq_core.spec import DEFAULT_MODEL, ComparisonSpec, Lane

TIMES = Path(__file__).with_suffix(".json")
PROMPT = "The harbour keeps its tide tables by hand, and the brass gauge has a paper drum that nobody replaces. " * 3
KNOBS = {"group_size": 8, "residual_length": 16}
LANES = (
    Lane(label="per token", method="per_token", knobs=KNOBS, sliding=True),
    Lane(label="KIVI", method="kivi", knobs=KNOBS, sliding=True),
    Lane(label="SQuat", method="squat", knobs={**KNOBS, "block_size": 8}, sliding=True),
    Lane(label="InnerQ", method="innerq", knobs={"group_size": 8}, sliding=True),
)
SPEC = ComparisonSpec(prompt=PROMPT, chat=False, max_new_tokens=16, ignore_eos=True, lanes=LANES)


def timed(kind: str, tokenizer: Any) -> dict[str, float]:
    """CPU seconds of loading a model of that kind, and of running the four lanes that can be had on it."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(7)
        config = AutoConfig.for_model(kind, **sized(kind, len(tokenizer)))
        AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        release()
        began = time.process_time()
        model = load(folder)
        loaded = time.process_time()
        lanes = tuple(lane for lane in LANES if lane.why_not(model.shape) is None)
        for _ in compare_on(model, SPEC.model_copy(update={"lanes": lanes})):
            pass
        ended = time.process_time()
    return {"load_s": round(loaded - began, 2), "run_s": round(ended - loaded, 2), "lanes": len(lanes)}


def main() -> None:
    told = json.loads(RESULTS.read_text())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs = [kind for kind in sorted(CONFIGS) if "refused" not in told.get(kind, {"refused": ""})]
    parser.add_argument("kinds", nargs="*", default=runs, metavar="KIND")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    tokenizer = load(DEFAULT_MODEL).tokenizer
    known = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    with tempfile.TemporaryDirectory() as home:
        os.environ["KVQ_HOME"] = home  # nothing that was found out about a kind before is known
        for kind in parser.parse_args().kinds:
            try:
                known[kind] = timed(kind, tokenizer)
            except ModelError as error:
                print(kind, error, flush=True)
                continue
            print(kind, known[kind], flush=True)
            TIMES.write_text(json.dumps({kind: known[kind] for kind in sorted(known)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
