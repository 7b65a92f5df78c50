"""``python -m kvq_core layers``: what each layer costs alone, and the policy for a budget, verified by a run."""

import argparse
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kvq_core.cli.bar import Bar
from kvq_core.cli.output import as_json, columns
from kvq_core.errors import SpecError

if TYPE_CHECKING:
    from kvq_core.recommend.held_out import MeasuredLane, MeasuredPolicy
    from kvq_core.recommend.sensitivity import Score
    from kvq_core.studies.prompts import StudyPrompt

Result = TypeVar("Result")
EXAMPLES = (
    "python -m kvq_core layers --prompts prompts.jsonl --format q4_0 --format q8_0\n"
    "  python -m kvq_core layers --solve 0123456789abcdef --bits 5.5 --check-prompts others.jsonl\n"
    "  python -m kvq_core layers --solve 0123456789abcdef --bits 6 --engine vllm --check-prompts others.jsonl --json"
)


def add_arguments(parser: argparse.ArgumentParser, quiet: Callable[[], None]) -> None:
    parser.add_argument("--model", metavar="M", help="model id, folder, or GGUF file; the bundled one otherwise")
    parser.add_argument("--prompts", metavar="FILE", type=Path, help="prompts to score on, a file as a study has it")
    parser.add_argument(
        "--format",
        metavar="NAME[:knob=value,...]",
        action="append",
        default=[],
        help="a candidate; may be given again. fp16 is always one",
    )
    parser.add_argument("--solve", metavar="ID", help="find the policy of these scores")
    parser.add_argument("--front", metavar="ID", help="print policies of these scores by budget, free and by engine")
    parser.add_argument("--bits", type=float, help="its budget, bits an element of keys and values")
    parser.add_argument("--engine", help="only policies that this engine loads: vllm, llama.cpp, ik_llama.cpp")
    parser.add_argument("--check-prompts", metavar="FILE", type=Path, help="prompts to verify it on, not scored before")
    parser.set_defaults(quiet=quiet)


def layers(arguments: argparse.Namespace) -> None:
    """Score layers, or solve for a budget with what was scored."""
    arguments.quiet()
    _check(arguments)
    if arguments.front is not None:
        _front(arguments)
    elif arguments.solve is None:
        try:
            _score(arguments)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("Interrupted; scores are kept, and the same command goes on from there.") from None
    else:
        _solve(arguments)


def _check(arguments: argparse.Namespace) -> None:
    """Raises SpecError where arguments are missing, or of the other form."""
    if arguments.front is not None:
        names = ("prompts", "format", "solve", "bits", "engine", "check_prompts")
        if extra := [name for name in names if getattr(arguments, name) not in (None, [])]:
            raise SpecError(f"--{extra[0].replace('_', '-')} does not go with --front.")
        return
    scoring, solving = ("prompts", "format"), ("bits", "check_prompts")
    needed, idle = (scoring, solving) if arguments.solve is None else (solving, scoring)
    if missing := [name for name in needed if getattr(arguments, name) in (None, [])]:
        raise SpecError(f"--{missing[0].replace('_', '-')} is missing. See: python -m kvq_core layers --help")
    if extra := [name for name in idle if getattr(arguments, name) not in (None, [])]:
        raise SpecError(
            f"--{extra[0].replace('_', '-')} does not go {'without' if idle is solving else 'with'} --solve."
        )
    if arguments.bits is not None and not 0 < arguments.bits <= 16:
        raise SpecError(f"bits = {arguments.bits} is not allowed; give a number above 0, at most 16.")


def _score(arguments: argparse.Namespace) -> None:
    from kvq_core.recommend.layer_plans import Candidate
    from kvq_core.recommend.sensitivity import score_layers
    from kvq_core.spec import DEFAULT_MODEL

    prompts, candidates = study_prompts(arguments.prompts), [Candidate.parse(each) for each in arguments.format]
    with redirect_stdout(sys.stderr), Bar() as bar:
        model = bar.load(arguments.model or DEFAULT_MODEL)
        scores = bar.last(score_layers(model, prompts, candidates))
    found = scores.scores()
    if arguments.json:
        print(as_json({"id": scores.id, "scores": [each.model_dump(mode="json") for each in found]}))
    else:
        print(_described(scores.id, len(scores.whole), found))


def _solve(arguments: argparse.Namespace) -> None:
    from kvq_core.recommend.engine_limits import engine_title
    from kvq_core.recommend.held_out import verify
    from kvq_core.recommend.sensitivity import check_scores_model, load_scores

    scores, prompts = load_scores(arguments.solve), study_prompts(arguments.check_prompts)
    if arguments.engine is not None:
        engine_title(arguments.engine)
    with redirect_stdout(sys.stderr), Bar() as bar:
        model = bar.load(arguments.model or scores.model)
        check_scores_model(model, scores)
        found = bar.last(verify(model, scores, arguments.bits, arguments.engine, prompts))
    print(as_json(found.model_dump(mode="json")) if arguments.json else _answered(found))


def _front(arguments: argparse.Namespace) -> None:
    from kvq_core.models import outline
    from kvq_core.recommend.fronts import fronts
    from kvq_core.recommend.layer_plans import Candidate
    from kvq_core.recommend.sensitivity import check_scores_model, load_scores

    scores = load_scores(arguments.front)
    with redirect_stdout(sys.stderr):
        model = outline(arguments.model or scores.model)
        check_scores_model(model, scores)
    found = fronts(scores.costs(model.shape), [Candidate.parse(name) for name in scores.formats])
    if arguments.json:
        print(as_json({"id": scores.id, "fronts": [each.model_dump(mode="json") for each in found]}))
        return
    for each in found:
        print(f"{each.title} {each.version or ''}".strip())
        rows = [("bits", "bytes", "KLD predicted")]
        rows += [(f"{point.bits:.2f}", f"{point.bytes:,}", f"{point.predicted:.3g}") for point in each.points]
        print("\n".join([*columns(rows), ""]))


def study_prompts(file: Path) -> "list[StudyPrompt]":
    """The prompts of a file, as a study reads it. Raises SpecError."""
    from kvq_core.studies.sources import PromptSource

    return list(PromptSource(file=str(file)).read()[0])


def _described(id: str, prompts: int, found: "list[Score]") -> str:
    rows = [("format", "tensor", "layer", "KLD", "low", "high")]
    for each in sorted(found, key=lambda score: -score.kld_mean):
        low, high = ("-" if bound is None else f"{bound:.3g}" for bound in (each.kld_low, each.kld_high))
        rows.append((each.format, each.tensor, str(each.layer), f"{each.kld_mean:.3g}", low, high))
    return "\n".join([f"Scores {id}, over {prompts} prompts; the costliest first.", "", *columns(rows)])


def _answered(found: "MeasuredPolicy") -> str:
    def row(name: str, told: "MeasuredLane") -> tuple[str, ...]:
        predicted = "-" if told.predicted is None else f"{told.predicted:.3g}"
        return name, f"{told.bytes:,}", predicted, f"{told.measured:.3g}"

    verdict = "The policy" if found.beats else "The policy does not beat the best uniform lane, which"
    where = f"inside what {found.engine} {found.version} loads" if found.engine else "free"
    rows = [
        ("lane", "bytes", "KLD predicted", "measured"),
        row("policy", found.policy),
        row("best uniform", found.uniform),
        row("ends in fp16", found.ends),
    ]
    return "\n".join(
        [
            f"{verdict} is the answer ({where}, {found.prompts} prompts, bytes of 1,024 tokens of at most "
            f"{found.budget:,}).",
            "",
            *columns(rows),
            "",
            as_json(found.lane),
            *([found.flags] if found.flags else []),
        ]
    )
