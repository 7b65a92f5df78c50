"""How far our lanes of llama.cpp's formats are from llama.cpp itself: mean KLD against its own F32 cache and against
our full precision, of the same weights in float32 and the same tokens. Needs the package xllamacpp.

Rotation off in the engine is asked of its environment: LLAMA_ATTN_ROT_DISABLE=1 before the start, and --no-rotation.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gguf
import numpy as np
import torch

from benchmarks.measured import HERE, keep
from kvq_core.claims.texts import Text, token_ids
from kvq_core.events import Finished
from kvq_core.external.llama_cpp import LlamaCpp, Top, Types, version
from kvq_core.models import LoadedModel, load
from kvq_core.models.bundled import bundled_gguf
from kvq_core.models.second import SECOND_MODEL, local_file
from kvq_core.pipeline.compare import compare_on
from kvq_core.spec import DEFAULT_MODEL, parse_spec

FORMATS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
TEXTS = tuple(Text(kind="topics", start=share) for share in (0.05, 0.2, 0.35, 0.5, 0.65, 0.8))
PROMPT, SCORED = 300, 100
WITHIN = {"bundled": 0.15, "second": 0.30, "q8_0": 0.25}
SMALLEST = 1e-4  # below it a factor of 2 is allowed


def pairs(formats: Sequence[str]) -> list[Types]:
    """Keys alone, values alone, both."""
    return [Types(*pair) for name in formats for pair in ((name, "f16"), ("f16", name), (name, name))]


def written_in_float32(source: Path, target: Path) -> Path:
    """The same model with every tensor in float32: a quantized file's activations are quantized as well."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind, inner = field.types[0], field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), kind, inner)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def theirs(file: Path, types: Types, asked: list[tuple[list[int], list[int]]], threads: int) -> list[list[Top]]:
    """llama.cpp's answers to every forced token but the first, whose logits are the prefill's own."""
    with LlamaCpp(file, types, PROMPT + SCORED + 8, threads=threads) as engine:
        return [engine.logprobs(ids, forced)[1:] for ids, forced in asked]


def mean_kld(reference: list[list[Top]], found: list[list[Top]]) -> float:
    both = zip(reference, found, strict=True)
    return float(np.mean([own.kld(other) for one, theirs in both for own, other in zip(one, theirs, strict=True)]))


def ours(model: LoadedModel, asked: list[tuple[list[int], list[int]]], every: list[Types], rotate: bool) -> list[float]:
    """Mean KLD over all positions of every pair's lane, the prompt read as llama.cpp reads it."""
    lanes = [lane_of(types, rotate) for types in every]
    pooled: list[list[np.ndarray]] = [[] for _ in lanes]
    for ids, forced in asked:
        texts = [model.tokenizer.decode(part) for part in (ids, forced)]
        spec = parse_spec(
            {
                "prompt": texts[0],
                "continuation": texts[1],
                "chat": False,
                "lanes": lanes,
                "capture": {"detail": "off"},
                "score_prompt": "none",
            }
        )
        *_, done = compare_on(model, spec)
        assert isinstance(done, Finished)
        reference = done.record.reference
        assert (reference.prompt_token_ids, reference.token_ids) == (ids, forced), "the text is read as other tokens"
        for at, lane in enumerate(done.record.lanes):
            assert lane.status == "done", lane.error
            pooled[at].append(done.arrays[f"lane/{at}/kld"].double().numpy())
    return [float(np.concatenate(parts).mean()) for parts in pooled]


def lane_of(types: Types, rotate: bool) -> dict[str, Any]:
    named = {"keys": types.keys, "values": types.values}
    quantized = {tensor: name for tensor, name in named.items() if name != "f16"}
    rules = [{"method": name, "tensors": tensor, "knobs": {"rotate": rotate}} for tensor, name in quantized.items()]
    stored = {"chunk": 512, "own_chunk": "stored"}
    if len(set(named.values())) == 1:
        rules = [{**rules[0], "tensors": "both"}]
    return {"label": str(types), "rules": rules, "prefill": stored}


def texts(model: LoadedModel, count: int, scored: int) -> list[tuple[list[int], list[int]]]:
    """Prompts and what follows them, cut where their text reads as the same tokens again."""
    found = []
    for text in TEXTS[:count]:
        ids = token_ids(model, text, PROMPT + scored + 40)[0]
        end = next(n for n in range(PROMPT, PROMPT + 40) if _splits(model, ids, n, scored))
        found.append((ids[:end], ids[end : end + scored]))
    return found


def _splits(model: LoadedModel, ids: list[int], at: int, scored: int) -> bool:
    parts = ids[:at], ids[at : at + scored]
    read = (model.tokenizer(model.tokenizer.decode(part), add_special_tokens=False)["input_ids"] for part in parts)
    return all(list(one) == part for one, part in zip(read, parts, strict=True))


def measure(
    model: LoadedModel, file: Path, formats: Sequence[str], rotate: bool, count: int, scored: int
) -> dict[str, Any]:
    """Their and our mean KLD of every pair."""
    asked, every, threads = texts(model, count, scored), pairs(formats), torch.get_num_threads()
    reference = theirs(file, Types("f32", "f32"), asked, threads)
    own = ours(model, asked, every, rotate)
    rows = {}
    for types, simulated in zip(every, own, strict=True):
        measured = mean_kld(reference, theirs(file, types, asked, threads))
        rows[str(types)] = {"llama_cpp": measured, "ours": simulated, "ratio": simulated / measured}
        print(f"{types!s:<16} llama.cpp {measured:.3g}   ours {simulated:.3g}   {simulated / measured:.2f}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, choices=(DEFAULT_MODEL, SECOND_MODEL))
    parser.add_argument("--formats", default=",".join(FORMATS), help="of llama.cpp, all without it")
    parser.add_argument("--texts", type=int, default=len(TEXTS), help="how many (6)")
    parser.add_argument("--scored", type=int, default=SCORED, help="tokens of each (100)")
    parser.add_argument("--no-rotation", action="store_true", help="of our lanes")
    parser.add_argument("--out", type=Path, default=HERE / "llama_cpp.json")
    args = parser.parse_args()
    rotate = not args.no_rotation
    if rotate == (os.environ.get("LLAMA_ATTN_ROT_DISABLE", "0") not in ("", "0")):
        parser.error("LLAMA_ATTN_ROT_DISABLE=1 and --no-rotation go together: both turn rotation off")
    model = load(args.model)
    source = bundled_gguf() if args.model == DEFAULT_MODEL else local_file()
    assert source is not None, "the second model's file is not here: make second-model"
    with tempfile.TemporaryDirectory() as folder:
        file = written_in_float32(source, Path(folder) / "float32.gguf")
        rows = measure(model, file, args.formats.split(","), rotate, args.texts, args.scored)
    held = {
        "model": model.title,
        "package": f"xllamacpp {version()}",
        "texts": args.texts,
        "scored": args.scored,
        "rotation": rotate,
        "pairs": rows,
    }
    keep(args.out, model.id if rotate else f"{model.id}, no rotation", held)


if __name__ == "__main__":
    main()
