"""A pair of cache types of ``llama_cpp.py`` on many more texts: whether its row there is off, or scatters. Of each the
mean KLD here and in llama.cpp, each against its own full precision, on the same tokens and the same weights in
float32. Writes ``llama_cpp_texts.json`` after every few texts and goes on from what is there; needs xllamacpp.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from scipy.stats import bootstrap

from benchmarks.llama_cpp import SCORED, mean_kld, texts_from, theirs, written_in_float32
from benchmarks.measured import HERE, figures, keep
from kvq_core.claims.texts import Text
from kvq_core.models import LoadedModel, load
from kvq_core.models.bundled import bundled_gguf
from kvq_core.models.second import SECOND_MODEL, local_file
from kvq_core.servers.llama_cpp import Types, version
from kvq_core.servers.simulated import kld_of, lane_of
from kvq_core.spec import DEFAULT_MODEL

TEXTS, AT_ONCE = 24, 2  # texts in all, and between two writes
FULL = Types("f32", "f32")


def spread(count: int) -> list[Text]:
    """Stretches of the help topics, evenly over all of them."""
    return [Text(kind="topics", start=(at + 0.5) / count) for at in range(count)]


def ratio(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Mean over mean, with a 95 % interval over texts: the BCa bootstrap that draws texts with both their figures."""
    found = bootstrap(
        (np.array(ours), np.array(theirs)),
        lambda a, b, axis=-1: a.mean(axis) / b.mean(axis),
        paired=True,
        rng=np.random.default_rng(0),
    ).confidence_interval
    means = {"ours": float(np.mean(ours)), "llama_cpp": float(np.mean(theirs))}
    return means | {"ratio": means["ours"] / means["llama_cpp"], "low": float(found.low), "high": float(found.high)}


def measure(
    model: LoadedModel, file: Path, types: Types, some: list[Text], rotate: bool = True
) -> tuple[list[float], list[float]]:
    """Of every text the mean KLD here, and in llama.cpp, where the environment says whether it rotates."""
    asked = texts_from(model, some, SCORED + 1)
    own = [float(kld.mean()) for kld, _ in kld_of(model, [lane_of(types, rotate)], asked)[0]]
    both = zip(theirs(file, FULL, asked), theirs(file, types, asked), strict=True)
    return own, [mean_kld([reference], [found]) for reference, found in both]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", default="q4_1/f16", help="types of keys and values (q4_1/f16)")
    parser.add_argument("--model", default=DEFAULT_MODEL, choices=(DEFAULT_MODEL, SECOND_MODEL))
    parser.add_argument("--texts", type=int, default=TEXTS, help=f"how many ({TEXTS})")
    args = parser.parse_args()
    types, model, every = Types.of(args.pair), load(args.model), spread(args.texts)
    source = bundled_gguf() if args.model == DEFAULT_MODEL else local_file()
    assert source is not None, "the second model's file is not here: make second-model"
    name = str(types) if args.model == DEFAULT_MODEL else f"{types}, {args.model}"
    setting = {"model": model.title, "package": f"xllamacpp {version()}", "texts": args.texts, "scored": SCORED}
    known = (figures("llama_cpp_texts") or {}).get(name, {})
    ours, engine = (known[each] if setting.items() <= known.items() else [] for each in ("by_text", "by_text_there"))
    with tempfile.TemporaryDirectory() as folder:
        file = written_in_float32(source, Path(folder) / "float32.gguf")
        while left := every[len(ours) :]:
            own, found = measure(model, file, types, left[:AT_ONCE])
            ours, engine = ours + own, engine + found
            told = {**setting, "done": len(ours), "by_text": ours, "by_text_there": engine, **ratio(ours, engine)}
            keep(HERE / "llama_cpp_texts.json", name, told)
            print(f"{len(ours)} texts: {told['ratio']:.2f} ({told['low']:.2f} to {told['high']:.2f})", flush=True)


if __name__ == "__main__":
    main()
