"""How far our lanes of llama.cpp's formats are from llama.cpp itself: mean KLD against its own F32 cache and against
our full precision, of the same weights in float32 and the same tokens. Needs the package xllamacpp.

What was measured is written after every pair, and what is written already is not measured again; take the file away to
begin anew. Rotation off in the engine is asked of its environment: LLAMA_ATTN_ROT_DISABLE=1, and --no-rotation.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gguf
import numpy as np

from benchmarks.measured import HERE, figures, keep
from kvq_core.claims.texts import Text, token_ids
from kvq_core.models import LoadedModel, load
from kvq_core.models.bundled import bundled_gguf
from kvq_core.models.second import SECOND_MODEL, local_file
from kvq_core.servers.llama_cpp import LlamaCpp, Types, version
from kvq_core.servers.simulated import PromptPairs, simulate
from kvq_core.servers.tops import Top
from kvq_core.spec import DEFAULT_MODEL

FORMATS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
TEXTS = tuple(Text(kind="topics", start=share) for share in (0.05, 0.2, 0.35, 0.5, 0.65, 0.8))
PROMPT, SCORED = 300, 100
WITHIN, OF_SECOND, OF_8_BITS = 0.15, 0.30, 0.25  # how far ours may be from theirs, relative
SMALLEST = 1e-4  # nats, below which a factor of 2 is allowed
# Tokens whose probabilities llama.cpp tells; the others count as one: .4 % less than KLD over all, a tenth of the time.
TOP = 4096


def pairs(formats: Sequence[str]) -> list[Types]:
    """Keys alone, values alone, both."""
    return [Types(*pair) for name in formats for pair in ((name, "f16"), ("f16", name), (name, name))]


def allowed(pair: str, measured: float, model: str) -> tuple[float, float]:
    """What ours over theirs may be."""
    if measured < SMALLEST:
        return 0.5, 2.0
    within = OF_8_BITS if "q8_0" in pair else WITHIN
    within = max(within, OF_SECOND) if model == SECOND_MODEL else within
    return round(1 - within, 2), round(1 + within, 2)


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


def theirs(file: Path, types: Types, asked: PromptPairs) -> list[list[Top]]:
    """llama.cpp's answers to every forced token but the first, whose logits are the prefill's own. One thread: more of
    them spin while they wait for one another."""
    with LlamaCpp(file, types, PROMPT + SCORED + 48, threads=1) as engine:
        return [engine.logprobs(ids, forced, TOP)[1:] for ids, forced in asked]


def mean_kld(reference: list[list[Top]], found: list[list[Top]]) -> float:
    both = zip(reference, found, strict=True)
    return float(np.mean([own.kld(other) for one, theirs in both for own, other in zip(one, theirs, strict=True)]))


def ours(model: LoadedModel, asked: PromptPairs, every: list[Types], rotate: bool) -> list[float]:
    """Mean KLD over all positions of every pair's lane, the prompt read as llama.cpp reads it."""
    return [float(kld.mean()) for kld, _ in simulate(model, every, asked, rotate)]


def texts(model: LoadedModel, count: int, scored: int) -> PromptPairs:
    """Prompts and what follows them, of the first texts."""
    return texts_from(model, TEXTS[:count], scored)


def texts_from(model: LoadedModel, every: Sequence[Text], scored: int) -> PromptPairs:
    """Prompts and what follows them, cut where their text reads as the same tokens again."""
    found = []
    for text in every:
        ids = token_ids(model, text, PROMPT + scored + 40)[0]
        end = next(n for n in range(PROMPT, PROMPT + 40) if _splits(model, ids, n, scored))
        found.append((ids[:end], ids[end : end + scored]))
    return found


def _splits(model: LoadedModel, ids: list[int], at: int, scored: int) -> bool:
    parts = ids[:at], ids[at : at + scored]
    read = (model.tokenizer(model.tokenizer.decode(part), add_special_tokens=False)["input_ids"] for part in parts)
    return all(list(one) == part for one, part in zip(read, parts, strict=True))


def measure(
    model: LoadedModel, file: Path, asked: PromptPairs, rows: dict[str, dict[str, Any]], rotate: bool
) -> Iterator[dict[str, dict[str, Any]]]:
    """Our and their mean KLD of every pair in ``rows``, which holds what is known already; all of them after ours were
    measured, in one comparison a text, and after each of theirs."""
    if missing := [Types.of(pair) for pair, row in rows.items() if "ours" not in row]:
        for types, found in zip(missing, ours(model, asked, missing, rotate), strict=True):
            rows[str(types)]["ours"] = found
            _judge(rows[str(types)], str(types), model.id)
        yield rows
    if left := [pair for pair, row in rows.items() if "llama_cpp" not in row]:
        reference = theirs(file, Types("f32", "f32"), asked)
        for pair in left:
            row = rows[pair]
            row["llama_cpp"] = mean_kld(reference, theirs(file, Types.of(pair), asked))
            _judge(row, pair, model.id)
            print(
                f"{pair:<16} llama.cpp {row['llama_cpp']:.3g}   ours {row['ours']:.3g}   {row['ratio']:.2f}", flush=True
            )
            yield rows


def _judge(row: dict[str, Any], pair: str, model: str) -> None:
    """Lay ours over theirs once both are known."""
    if row.keys() >= {"ours", "llama_cpp"}:
        row["ratio"] = row["ours"] / row["llama_cpp"]
        row["allowed"] = allowed(pair, row["llama_cpp"], model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, choices=(DEFAULT_MODEL, SECOND_MODEL))
    parser.add_argument("--pairs", default=",".join(map(str, pairs(FORMATS))), help="of types, keys/values; all")
    parser.add_argument("--texts", type=int, default=len(TEXTS), help="how many (6)")
    parser.add_argument("--scored", type=int, default=SCORED, help="positions of each (100)")
    parser.add_argument("--no-rotation", action="store_true", help="of our lanes")
    args = parser.parse_args()
    rotate = not args.no_rotation
    if rotate == (os.environ.get("LLAMA_ATTN_ROT_DISABLE", "0") not in ("", "0")):
        parser.error("LLAMA_ATTN_ROT_DISABLE=1 and --no-rotation go together: both turn rotation off")
    model = load(args.model)
    source = bundled_gguf() if args.model == DEFAULT_MODEL else local_file()
    assert source is not None, "the second model's file is not here: make second-model"
    setting = {
        "model": model.title,
        "package": f"xllamacpp {version()}",
        "texts": args.texts,
        "scored": args.scored,
        "rotation": rotate,
    }
    name = model.id if rotate else f"{model.id}, no rotation"
    known = (figures("llama_cpp") or {}).get(name, {})
    done = known.get("pairs", {}) if setting.items() <= known.items() else {}
    rows = {pair: done.get(pair, {}) for pair in dict.fromkeys((*args.pairs.split(","), *done))}
    with tempfile.TemporaryDirectory() as folder:
        file = written_in_float32(source, Path(folder) / "float32.gguf")
        for found in measure(model, file, texts(model, args.texts, args.scored + 1), rows, rotate):
            keep(HERE / "llama_cpp.json", name, {**setting, "pairs": found})


if __name__ == "__main__":
    main()
