"""``python -m kvq_core mend``: a model's file whose cache a format can hold, checked before it is written."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvq_core.cli.bar import Bar
from kvq_core.cli.output import as_json, columns
from kvq_core.errors import SpecError

if TYPE_CHECKING:
    from kvq_core.mend.mend import Mended

EXAMPLES = (
    "python -m kvq_core mend model.gguf --for q4_0 --context 8192 --out mended.gguf\n"
    "  python -m kvq_core mend model.gguf --for q4_0/q8_0 --context 4096 --only biases --in-place\n"
    "  python -m kvq_core mend --undo model.gguf"
)


def add_arguments(parser: argparse.ArgumentParser, quiet: Callable[[], None]) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a .gguf file, or a folder of safetensors")
    parser.add_argument(
        "--for", dest="form", metavar="K/V", help="cache types of keys and values, or one name for both"
    )
    parser.add_argument(
        "--context", type=int, default=8192, metavar="N", help="tokens that the file is to be good for (8192)"
    )
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE", help="texts to choose on: JSONL of prompt (those that ship)"
    )
    parser.add_argument("--check-prompts", type=Path, metavar="FILE", help="other texts to check on (those that ship)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the mended file, or folder, is written")
    parser.add_argument(
        "--in-place", action="store_true", help="change the GGUF file itself; its old bytes are kept beside it"
    )
    parser.add_argument("--only", choices=("biases", "folded"), help="one of the two edits")
    parser.add_argument(
        "--allow",
        type=float,
        default=0.001,
        metavar="NATS",
        help="mean KLD in full precision that biases may cost (.001)",
    )
    parser.add_argument(
        "--verify", action="store_true", help="then run both files in llama.cpp under its own cache types"
    )
    parser.add_argument("--undo", type=Path, metavar="FILE", help="restore a file that was changed in place")
    parser.set_defaults(quiet=quiet)


def mend_command(arguments: argparse.Namespace) -> None:
    """Mend a file, or undo it, and print what was done."""
    arguments.quiet()
    if arguments.undo is not None:
        print(_undone(arguments))
        return
    request = _request(arguments)
    from kvq_core.mend.mend import mend as mended

    with Bar(timed=True) as bar:
        found = mended(request, bar)
        engine = _verified(arguments, found, bar)
    data = found.data() | ({} if engine is None else {"engine": engine})
    print(as_json(data) if arguments.json else "\n".join(_lines(data)))


def _undone(arguments: argparse.Namespace) -> str:
    from kvq_core.mend.gguf_file import undo

    if arguments.model is not None:
        raise SpecError("--undo takes one file: mend --undo FILE.")
    digest = undo(arguments.undo)
    told = {"undone": str(arguments.undo), "sha256": digest}
    return as_json(told) if arguments.json else f"{arguments.undo} is what it was: sha256 {digest}."


def _request(arguments: argparse.Namespace) -> Any:
    from kvq_core.mend.formats import CacheFormat
    from kvq_core.mend.mend import LEAST_CONTEXT, MendRequest, model_place

    if arguments.model is None or arguments.form is None:
        raise SpecError("Give MODEL and --for, such as mend model.gguf --for q4_0 --out mended.gguf; see mend --help.")
    if (arguments.out is None) is not arguments.in_place:
        raise SpecError("Give one of --out FILE and --in-place.")
    if arguments.verify and arguments.in_place:
        raise SpecError("--verify needs the original beside the mended file; give --out in place of --in-place.")
    if arguments.context < LEAST_CONTEXT:
        raise SpecError(f"--context {arguments.context} is too short; give {LEAST_CONTEXT} or more.")
    if not arguments.allow > 0:
        raise SpecError(f"--allow {arguments.allow} is not allowed; give a number above 0, such as 0.001.")
    form = CacheFormat.of(arguments.form)
    if arguments.verify:
        from kvq_core.mend.verify import check_possible

        check_possible(form, model_place(arguments.model))
    given = (arguments.context, arguments.out, arguments.prompts, arguments.check_prompts)
    return MendRequest(model_place(arguments.model), form, *given, arguments.allow, arguments.only)


def _verified(arguments: argparse.Namespace, found: "Mended", bar: Bar) -> dict[str, Any] | None:
    if not arguments.verify or found.why_not is not None or found.ids is None:
        return None
    from kvq_core.mend.verify import verify

    return verify(found, bar)


def _lines(data: dict[str, Any]) -> list[str]:
    """What a person reads: what was done, and the figures it rests on."""
    pairs = sum(len(each["pairs"]) + len(each.get("half", [])) for each in data["biases"])
    gains = [each["gain"] for each in data["folded"]]
    lines = [
        f"Biases left out: {pairs} pairs in {len(data['biases'])} heads. Scales folded: {len(gains)} layers."
        if data["biases"] or gains
        else "Nothing is changed."
    ]
    if data["prompts"]:
        lines += ["", *columns(_rows(data, "unseen prompts", "full precision"))]
    if "engine" in data:
        lines += [
            "",
            *columns(_rows(data["engine"], "in llama.cpp itself", "F32 cache")),
        ]
    if data["written"]:
        lines += ["", f"Written: {data['out']}, {data['changed_bytes']:,} bytes changed."]
        lines += [f"As F16, for scales their type cannot hold: {', '.join(data['as_f16'])}."] if data["as_f16"] else []
        lines += [f"Old bytes: {data['backup']}; mend --undo brings them back."] if data["backup"] else []
    else:
        lines += ["", f"No file was written: {data['why_not']}."]
    return lines


def _rows(data: dict[str, Any], title: str, plain: str) -> list[tuple[str, ...]]:
    kld = data["kld"]
    of_short = f"mean KLD, {data['prompts']} prompts, {data['positions']} tokens"
    rows: list[tuple[str, ...]] = [(title, "original", "mended", f"mended, {plain}")]
    rows += [(of_short, _interval(kld, "before"), _interval(kld, "after"), f"{data['full_precision_kld']:.2g}")]
    flips = data["flips"]
    rows += [("flips", *(f"{flips[name]}" for name in ("before", "after", "full_precision")))]
    if "at_context" in data:
        far = data["at_context"]
        numbers = (far["kld"]["before"], far["kld"]["after"], far["full_precision_kld"])
        rows += [(f"mean KLD at {data['context']:,} tokens", *(f"{each:.3g}" for each in numbers))]
    return rows


def _interval(kld: dict[str, Any], name: str) -> str:
    if kld[f"{name}_low"] is None:
        return f"{kld[name]:.3g}"
    return f"{kld[name]:.3g} ({kld[f'{name}_low']:.2g} to {kld[f'{name}_high']:.2g})"
