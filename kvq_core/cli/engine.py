"""``python -m kvq_core engine``: a GGUF file under the real llama.cpp's own cache types."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvq_core.cli.bar import Bar
from kvq_core.cli.output import as_json, columns
from kvq_core.errors import SpecError

if TYPE_CHECKING:
    from kvq_core.models import LoadedModel
    from kvq_core.servers.engine_runs import EngineDamage
    from kvq_core.servers.perplexity_log import LoggedRun

EXAMPLES = (
    "python -m kvq_core engine --gguf model.gguf --types q8_0/q8_0,q8_0/q4_0 --prompts prompts.jsonl\n"
    "  python -m kvq_core engine --gguf model.gguf --types q4_0 --prompts prompt.txt --new-tokens 32 --json\n"
    "  python -m kvq_core engine --log perplexity-q4_0.txt --log perplexity-q8_0.txt"
)
COLUMNS = (
    "cache K/V",
    "mean KLD",
    "p99",
    "same top",
    "flips",
    "told from the floor",
    "bytes/token",
    "tokens/s",
    "source",
)


def add_arguments(parser: argparse.ArgumentParser, quiet: Callable[[], None]) -> None:
    parser.add_argument("--gguf", metavar="FILE", type=Path, help="the model, as llama.cpp reads it")
    parser.add_argument("--types", metavar="K/V,...", help="pairs of cache types, or one name for both")
    parser.add_argument(
        "--prompts", metavar="FILE", type=Path, help="a text, or JSONL of prompt and, optional, continuation"
    )
    parser.add_argument("--new-tokens", type=int, default=64, metavar="N", help="tokens that are scored (64)")
    parser.add_argument(
        "--top", type=int, metavar="N", help="compare the N most probable tokens, the others as one (every token)"
    )
    parser.add_argument(
        "--simulate", action="store_true", help="also the same types as lanes here, of the same file, converted"
    )
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of llama.cpp (2)")
    parser.add_argument(
        "--log",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="also show what llama-perplexity --kl-divergence printed",
    )
    parser.set_defaults(quiet=quiet)


def engine(arguments: argparse.Namespace) -> None:
    """Measure every pair of types in llama.cpp, and print them beside the logs."""
    from kvq_core.servers.perplexity_log import read_logs

    given = [arguments.gguf, arguments.types, arguments.prompts]
    if any(given) != all(given) or not (any(given) or arguments.log):
        raise SpecError("Give --gguf, --types and --prompts together, or logs with --log.")
    logs = read_logs(arguments.log)
    measured: list[EngineDamage] = []
    if any(given):
        arguments.quiet()
        with redirect_stdout(sys.stderr):
            measured = _measured(arguments)
    if arguments.json:
        print(as_json(_data(arguments, measured, logs)))
    else:
        print(damage_table(measured, logs))


def _measured(arguments: argparse.Namespace) -> list["EngineDamage"]:
    from kvq_core.servers.engine_runs import measure, read_prompts
    from kvq_core.servers.llama_cpp import EVERY, Types

    for name in ("new_tokens", "top", "threads"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise SpecError(f"--{name.replace('_', '-')} {value} is not allowed; give 1 or more.")
    every = list(dict.fromkeys(Types.of(words) for words in arguments.types.split(",")))
    prompts = read_prompts(arguments.prompts)
    if not arguments.gguf.is_file():
        raise SpecError(f"{arguments.gguf} is no file; give a GGUF file.")
    own = _converted(arguments.gguf) if arguments.simulate else None
    found, total = [], len(every) * (1 + arguments.simulate) + 2
    for done in measure(
        arguments.gguf, every, prompts, arguments.new_tokens, arguments.top or EVERY, arguments.threads, own
    ):
        found.append(done)
        print(f"{done.source}: {done.types}, {len(found)} of {total}", file=sys.stderr, flush=True)
    return found


def _converted(file: Path) -> "LoadedModel":
    with Bar() as bar:
        return bar.load(str(file))


def damage_table(measured: list["EngineDamage"], logs: list["LoggedRun"]) -> str:
    """Pairs of types as rows, the reference and the floor first, then logs."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for at, one in enumerate(measured):
        numbers = _numbers(one)
        told = "" if at < 2 else "yes" if one.apart(measured[1]) else "no"
        name = (
            f"{one.types} (reference)"
            if at == 0
            else f"{one.types}, ubatch {one.ubatch} (floor)"
            if at == 1
            else str(one.types)
        )
        speed = "-" if one.tokens_a_second is None else f"{one.tokens_a_second:.1f}"
        rows.append(
            (
                name,
                f"{numbers['kld_mean']:.3g}",
                f"{numbers['kld_p99']:.3g}",
                f"{numbers['same_top']:.1%}",
                f"{numbers['flips']}",
                told,
                f"{one.bytes_a_token:,}",
                speed,
                one.source,
            )
        )
    for log in logs:
        same = "-" if log.same_top is None else f"{log.same_top:.1%}"
        p99 = "-" if log.kld_p99 is None else f"{log.kld_p99:.3g}"
        mean = "-" if log.kld_mean is None else f"{log.kld_mean:.3g}"
        rows.append((log.name, mean, p99, same, "-", "", "-", "-", log.broke or "llama-perplexity"))
    return "\n".join([*columns(rows), *_below(measured), *_texts(measured)])


def _texts(measured: list["EngineDamage"]) -> Iterator[str]:
    """What the engine answered of itself, and what it says otherwise under which types; simulations answer nothing."""
    own = [one for one in measured if one.texts]
    for at, text in enumerate(own[0].texts if own else []):
        yield f"\nPrompt {at + 1}, {own[0].types}: {json.dumps(text, ensure_ascii=False)}"
        for one in own[1:]:
            other = one.texts[at]
            same = len(os.path.commonprefix([text, other]))
            said = (
                "the same"
                if other == text
                else f"from character {same}: {json.dumps(other[same:], ensure_ascii=False)}"
            )
            yield f"  {one.types}: {said}"


def _below(measured: list["EngineDamage"]) -> list[str]:
    """What the figures are against, and what simulated ones lack."""
    said = []
    if measured:
        said = [
            "",
            f"{len(measured[0].kld)} positions against the file's own F32 cache. The floor is F16 with the prompt "
            "divided otherwise: what cannot be told from it, 95 % bootstrap interval of the paired difference, is "
            "rounding.",
        ]
    if any(one.source == "simulated" for one in measured):
        said.append(
            "Simulated lanes have the file's weights in full precision: the engine's figures hold the noise of "
            "quantized activations too, where the file is quantized. Theirs leave out each prompt's first token."
        )
    return said


def _numbers(one: "EngineDamage") -> dict[str, float]:
    import numpy as np

    return {
        "kld_mean": float(one.kld.mean()),
        "kld_p99": float(np.quantile(one.kld, 0.99)),
        "kld_max": float(one.kld.max()),
        "flips": int((~one.same).sum()),
        "same_top": float(one.same.mean()),
    }


def _data(arguments: argparse.Namespace, measured: list["EngineDamage"], logs: list["LoggedRun"]) -> dict[str, Any]:
    from dataclasses import asdict

    from kvq_core.models.gguf.header import read_header
    from kvq_core.servers.llama_cpp import version

    def told(one: "EngineDamage") -> dict[str, Any]:
        return {
            "types": str(one.types),
            "flags": one.types.flags,
            "source": one.source,
            "ubatch": one.ubatch,
            "positions": len(one.kld),
            **_numbers(one),
            "bytes_a_token": one.bytes_a_token,
            "tokens_a_second": one.tokens_a_second,
            "texts": one.texts,
        }

    found: dict[str, Any] = {"logs": [asdict(log) for log in logs]}
    if measured:
        reference, floor, *rest = measured
        lanes = [{**told(one), "told_from_floor": one.apart(floor)} for one in rest]
        found = {
            "engine": "llama.cpp",
            "package": f"xllamacpp {version()}",
            "file": arguments.gguf.name,
            "mended": read_header(arguments.gguf).mended,
            "reference": told(reference),
            "floor": told(floor),
            "lanes": lanes,
            **found,
        }
    return found
