"""``make bench``: what lanes cost beside one another, as ratios measured in one process: whole comparisons of 16 and of
64 lanes over one of 8, 8 lanes that are only forced over one plain ``generate()``, the second floor, prompts read
through the lanes' caches, and memory against its formula.

What is compared is CPU time of one thread, which other work on the machine changes little, both sides in turn; of each
repeat the ratio is taken, and of the ratios the median. Nothing here is asserted. The JSON has a part a model, and
measuring one thing leaves the others as they are.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.load_memory import measured_peaks
from benchmarks.main_job import comparison, generate
from benchmarks.measured import HERE, figures, keep
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.models import LoadedModel, load
from kvq_core.models.second import SECOND_MODEL
from kvq_core.pipeline.assemble import assemble
from kvq_core.pipeline.prompt import render
from kvq_core.presets import bundle_lanes, presets
from kvq_core.spec import DEFAULT_MODEL, ComparisonSpec, parse_spec

TARGETS = {"forced": 1.9, "floors": 0.7, "16": 1.85, "64": 6.9, "raw": 1.1, "stored": 1.4, "full": 9, "deployed": 0.4}
MOST = {"arrays_mb": 64, "memory": 1.2, "longest_gb": 10}
PROMPT_TOKENS, CHUNK = 1000, 512
KINDS = (  # a batch; later ones differ in their first tokens, so that nothing is encoded once for two of them
    {"method": "kivi", "knobs": {"bits": 4}},
    {"method": "kivi", "knobs": {"bits": 2}},
    {"method": "squat", "knobs": {"bits": 2, "block_size": 16}},
    {"method": "per_token", "knobs": {"bits": 8}},
    {"method": "per_token", "knobs": {"bits": 4}},
    {"method": "per_token", "knobs": {"bits": 2}},
    {"method": "per_channel", "knobs": {"bits": 4}},
    {"method": "per_channel", "knobs": {"bits": 2}},
)
LOCAL = tuple(  # whose codes are a token's alone, which stored chunks take
    {"method": "per_token", "knobs": {"bits": bits, "residual_length": kept}}
    for bits in (8, 4, 3, 2)
    for kept in (0, 32)
)
BARE: dict[str, Any] = {"capture": {"detail": "off"}, "free_text": False}
SIZES = ((512, 8, 8), (2048, 8, 8))  # of memory: prompt tokens, new tokens, lanes; about
LONGEST = (8150, 8, 8)  # of a context of 8,192: the last words are found by length alone


def spec_of(count: int, new: int, kinds: tuple[dict[str, Any], ...] = KINDS, **more: Any) -> ComparisonSpec:
    """``more``: of the spec, and ``prefill`` of every lane."""
    reading = {"prefill": more.pop("prefill")} if "prefill" in more else {}
    lanes = [
        {**kinds[at % len(kinds)], "sink_tokens": 4 * (at // len(kinds)), "label": f"lane {at}", **reading}
        for at in range(count)
    ]
    prompt = presets()["long-prompt"].spec.prompt
    return parse_spec({"prompt": prompt, "max_new_tokens": new, "ignore_eos": True, "lanes": lanes, **more})


def taken(work: Callable[[], Any]) -> float:
    """CPU seconds."""
    began = time.process_time()
    work()
    return time.process_time() - began


class Measuring:
    """The parts of the JSON, each on one prompt."""

    def __init__(self, model: LoadedModel, new: int, repeats: int):
        self.model, self.new, self.repeats = model, new, repeats
        self.ids = render(model, spec_of(8, new))[:PROMPT_TOKENS]
        generate(model, self.ids[:64], 4)  # warm-up: allocator, caches

    def _plain(self) -> float:
        return taken(lambda: generate(self.model, self.ids, self.new))

    def _run(self, count: int = 8, new: int | None = None, **more: Any) -> float:
        return taken(lambda: comparison(self.model, spec_of(count, new or self.new, **more), self.ids))

    def forced(self) -> dict[str, Any]:
        """8 lanes without captures and free text, in generates."""
        pairs = [(self._run(**BARE), self._plain()) for _ in range(self.repeats)]
        return {"new_tokens": self.new, "cpu_s": pairs, "ratio": median(ours / plain for ours, plain in pairs)}

    def floors(self) -> dict[str, Any]:
        """What a second floor adds to 8 lanes, in generates."""
        found = [(self._run(floors="both"), self._run(), self._plain()) for _ in range(self.repeats)]
        return {
            "new_tokens": self.new,
            "cpu_s": found,
            "ratio": median((both - one) / plain for both, one, plain in found),
        }

    def counts(self) -> dict[str, Any]:
        """Whole comparisons of more lanes over one of 8, and the arrays that a record of each has."""
        seconds, arrays = dict[str, float](), dict[str, float]()
        for count in (8, 16, 64):
            began = time.process_time()
            run = comparison(self.model, spec_of(count, self.new), self.ids)[1]
            seconds[str(count)] = time.process_time() - began
            arrays[str(count)] = sum(values.nbytes for values in assemble(run)[1].values()) / 2**20
            del run
        ratio = {name: took / seconds["8"] for name, took in seconds.items() if name != "8"}
        return {"new_tokens": self.new, "cpu_s": seconds, "ratio": ratio, "arrays_mb": arrays}

    def deploy(self) -> dict[str, Any]:
        """The lanes of the bundle ``deploy``, forced rows alone: all with the prompt read in full precision, in
        generates; and what a lane adds that reads it as its engine does."""
        lanes = bundle_lanes("deploy")
        read = [lane for lane in lanes if lane.get("prefill", "full") != "full"]
        given = {"prompt": presets()["long-prompt"].spec.prompt, "max_new_tokens": self.new, "ignore_eos": True, **BARE}

        def run(every: list[dict[str, Any]]) -> float:
            return taken(lambda: comparison(self.model, parse_spec({**given, "lanes": every}), self.ids))

        found = [
            (run([{**lane, "prefill": "full"} for lane in lanes]), run(lanes), self._plain())
            for _ in range(self.repeats)
        ]
        ratio = {
            "full": median(full / plain for full, _, plain in found),
            "deployed": median((both - full) / len(read) / plain for full, both, plain in found),
        }
        return {"new_tokens": self.new, "lanes": len(lanes), "read_through": len(read), "cpu_s": found, "ratio": ratio}

    def prefill(self) -> dict[str, Any]:
        """What a lane adds that reads the prompt through its cache, in prefills of the same prompt, by own chunk."""
        found: dict[str, list[tuple[float, ...]]] = {"raw": [], "stored": []}
        for _ in range(self.repeats):
            for own, held in found.items():
                lanes = {"kinds": KINDS if own == "raw" else LOCAL, "new": 2, **BARE}
                through = self._run(prefill={"chunk": CHUNK, "own_chunk": own}, **lanes)
                held.append((through, self._run(**lanes), taken(self._read)))
        of = {own: median((a - b) / 8 / one for a, b, one in held) for own, held in found.items()}
        return {"cpu_s": found, "ratio": of, "chunk": CHUNK}

    def _read(self) -> None:
        for _ in SharedPrefill(self.model.stepping(), self.ids).run():
            pass

    def memory(self) -> dict[str, Any]:
        """Peaks of runs of two lengths beside what was estimated, each in its own process; of the bundled model."""
        return {"peaks": measured_peaks(SIZES)}

    def longest(self) -> dict[str, Any]:
        """The peak of a process whose run fills the bundled model's context with 8 lanes."""
        return measured_peaks((LONGEST,))[0]


PARTS = ("forced", "floors", "counts", "deploy", "prefill", "memory", "longest")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=(DEFAULT_MODEL, SECOND_MODEL), default=DEFAULT_MODEL, help="id of the model")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="these alone; the others stay")
    parser.add_argument("--out", type=Path, default=HERE / "many_lanes.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load(args.model)
    measuring = Measuring(model, args.new_tokens, args.repeats)
    known = (figures(args.out.stem) or {}).get(args.model, {})
    result = {
        "model": model.title,
        "measured": "CPU seconds of one thread, median of the ratios of repeats",
        "prompt_tokens": len(measuring.ids),
        **{name: known[name] for name in PARTS if name in known},
        "targets": TARGETS,
        "most": MOST,
    }
    for part in args.parts:
        result[part] = getattr(measuring, part)()
        keep(args.out, args.model, result)
        print(part, {name: value for name, value in result[part].items() if name != "cpu_s"}, flush=True)


if __name__ == "__main__":
    main()
