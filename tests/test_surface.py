"""The public surface of ``kvq_core``: its names, what each takes, and what an import of it loads.

Whoever builds on the package builds on these. A change here is a change for them: it belongs into CHANGELOG.md.
"""

import inspect
import json
import subprocess
import sys
import typing

import pytest
from pydantic import BaseModel

import kvq_core
from tests.test_imports import ROOT

_EVENTS = ("Loading", "Prefill", "Encoding", "Filling", "Step", "Replaying", "Summarizing", "Finished")
_EVENT = " | ".join(f"kvq_core.record.events.{name}" for name in _EVENTS)
_RUN = "spec: kvq_core.spec.comparison.ComparisonSpec, store: kvq_core.record.store.Store | None = None"
_ERROR = "(message: str)"

# A function or plain class and its signature; a model and its fields, each with its type and, after =, its default.
SURFACE = {
    "Advice": {
        "answer": "str",
        "kind": "str",
        "sure": "bool",
        "lane": "dict[str, typing.Any] | None",
        "label": "str | None",
        "runner_up": "str | None",
        "runner_up_lane": "dict[str, typing.Any] | None = None",
        "separates": "str | None",
        "flags": "str | None",
        "agreement": "float | None",
        "reasons": "tuple[str, ...]",
        "front": "tuple[kvq_core.recommend.constraints.LaneCandidate, ...]",
        "worst": "tuple[kvq_core.recommend.constraints.Worst, ...]",
        "warnings": "tuple[str, ...]",
        "untested": "tuple[str, ...]",
        "helps": "tuple[str, ...]",
        "study": "str",
        "model": "str",
        "prompts": "int",
        "tolerance": "str",
        "context": "int",
        "batch": "int",
        "room": "str | None",
        "engine": "str | None",
        "version": "str | None",
        "batched_tokens": "int | None = None",
        "weights": "kvq_core.recommend.constraints.WeightsFile",
        "plain_bytes": "int",
        "plain_fits": "bool | None",
        "unflagged": "str | None = None",
    },
    "ComparisonSpec": {
        "model": "str = 'smollm2-135m-instruct-q4_1'",
        "revision": "str | None = None",
        "reference": "str | None = None",
        "system": "str | None = None",
        "prompt": "str = ''",
        "messages": "tuple[kvq_core.spec.conversation.Message, ...] | None = None",
        "tools": "tuple[dict[str, typing.Any], ...] = ()",
        "last": "Optional[Literal['answer', 'context']] = None",
        "score_turns": "Literal['last', 'all'] = 'last'",
        "chat": "bool = True",
        "continuation": "str | None = None",
        "max_new_tokens": "int = 64",
        "temperature": "float = 0.0",
        "seed": "int = 0",
        "score_chunk": "int = 1",
        "lanes": "tuple[kvq_core.spec.lane.Lane, ...] = ()",
        "capture": "kvq_core.spec.comparison.Capture = Capture(layers='auto', heads='all', detail='normal')",
        "stress": (
            "kvq_core.spec.comparison.Stress = Stress(key_outlier_scale=1.0, key_outlier_pairs=2, key_bias=0.0, "
            "layers='all', kv_heads='all')"
        ),
        "floors": "Literal['storage', 'both'] = 'storage'",
        "free_text": "bool = True",
        "score_prompt": "Literal['auto', 'all', 'none'] = 'auto'",
        "ignore_eos": "bool = False",
        "expect": "str = ''",
        "notes": "str = ''",
    },
    "Inspection": {
        "version": "int",
        "model": "str",
        "title": "str",
        "model_hash": "str",
        "dtype": "str",
        "facts": "kvq_core.inspection.report.CacheFacts",
        "formats": "tuple[kvq_core.inspection.report.FormatBytes, ...]",
        "sentence": "str",
        "at_risk_layers": "tuple[int, ...]",
        "reasons": "tuple[kvq_core.inspection.report.Reason, ...]",
        "figures": "tuple[kvq_core.inspection.report.LayerFigures, ...] = ()",
        "remedies": "tuple[kvq_core.inspection.report.Remedy, ...] = ()",
        "plain_kld": "Optional[float] = None",
        "tokens": "int = 0",
        "forced_tokens": "int = 0",
        "bytes_at": "int = 0",
        "published": "tuple[str, ...] = ()",
        "quantization": "str | None = None",
    },
    "KvqError": _ERROR,
    "Lane": {
        "label": "str = ''",
        "method": "str | None = None",
        "knobs": "dict[str, typing.Any] = {}",
        "tensors": "Literal['both', 'keys', 'values'] = 'both'",
        "layers": "Union[Literal['all'], tuple[int, ...]] = 'all'",
        "sink_tokens": "int | None = None",
        "recent_tokens": "int | None = None",
        "center": "Literal['none', 'mean', 'bias', 'mean_after_rope', 'slow'] = 'none'",
        "fold": "Literal['none', 'keys'] = 'none'",
        "sliding": "bool = False",
        "rotate": "Literal['none', 'hadamard', 'signed'] = 'none'",
        "rotate_block": "int | None = None",
        "prefill": "Union[Literal['full', 'deployed'], kvq_core.spec.prefill.Chunks] = 'full'",
        "select": "Optional[kvq_core.methods.base.KeySelection] = None",
        "rules": "tuple[kvq_core.spec.rule.Rule, ...] | None = None",
    },
    "MethodError": _ERROR,
    "ModelError": _ERROR,
    "Record": {
        "schema_version": "int = 8",
        "id": "str",
        "results_version": "int",
        "created": "str",
        "spec": "dict[str, typing.Any]",
        "environment": "kvq_core.record.environment.Environment",
        "reference": "kvq_core.record.fields.Reference",
        "noise_floor": "kvq_core.record.fields.LaneRecord",
        "lanes": "list[kvq_core.record.fields.LaneRecord]",
        "capture": "kvq_core.record.fields.CaptureInfo",
        "timing": "kvq_core.record.fields.RunTiming",
        "kernel_floor": "kvq_core.record.fields.LaneRecord | None = None",
        "stress": "kvq_core.record.fields.StressRecord | None = None",
        "vocabulary": "dict[int, str] = {}",
        "notes": "list[str] = []",
        "parent": "str | None = None",
    },
    "Roundtrip": (
        "(keys: torch.Tensor, values: torch.Tensor, nbytes: dict[str, int], key_bits: float, value_bits: float) -> None"
    ),
    "SpecError": _ERROR,
    "StoreError": _ERROR,
    "StudyResult": (
        "(plan: kvq_core.studies.cells.CellPlan, rows: list[dict[str, typing.Any]], failed: dict[str, str], "
        "done: int) -> None"
    ),
    "StudySpec": {
        "models": "tuple[str, ...] = ()",
        "prompts": "kvq_core.studies.sources.PromptSource",
        "comparison": "kvq_core.spec.comparison.ComparisonSpec",
    },
    "add_lane": (
        "(run: kvq_core.record.fields.Record | str, lane: kvq_core.spec.lane.Lane, "
        "store: kvq_core.record.store.Store | None = None) -> kvq_core.record.fields.Record"
    ),
    "capture_lane": (
        "(run: kvq_core.record.fields.Record | str, label: str, store: kvq_core.record.store.Store | None = None)"
        " -> kvq_core.record.fields.Record"
    ),
    "compare": f"({_RUN}, owner: str = '') -> collections.abc.Generator[{_EVENT}]",
    "advise": (
        "(*, study: str | kvq_core.studies.result.StudyResult | None = None, model: str | None = None, prompts: "
        "collections.abc.Sequence[kvq_core.studies.prompts.StudyPrompt] | None = None, memory: str | None = None, "
        "cache: str | None = None, bits: float | None = None, context: int = 8192, batch: int = 1, tolerance: str | "
        "float = 'close', engine: str | None = None, weights: collections.abc.Sequence[pathlib.Path] = (), store: "
        "kvq_core.record.store.Store | None = None, progress: collections.abc.Callable[[str, int, int], None] | None "
        "= None, workers: int | None = 1, batched_tokens: int | None = None) -> kvq_core.recommend.constraints.Advice"
    ),
    "from_function": (
        "(function: collections.abc.Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]], "
        "bits: float | tuple[float, float], name: str | None = None, tokens: int = 1, together: bool = False)"
        " -> kvq_core.spec.lane.Lane"
    ),
    "inspect_model": (
        "(model: str | kvq_core.models.loaded.LoadedModel, revision: str | None = None, *, remedies: bool = True, "
        "progress: collections.abc.Callable[[str, int, int], None] | None = None) "
        "-> kvq_core.inspection.report.Inspection"
    ),
    "captured_steps": (
        "(model: Any, input_ids: torch.Tensor, logits_processor: Any, stopping_criteria: Any, "
        "generation_config: Any, **kwargs: Any) -> Any"
    ),
    "look_at": (
        "(run: kvq_core.record.fields.Record | str, layer: int, store: kvq_core.record.store.Store | None = None)"
        " -> kvq_core.record.fields.Record"
    ),
    "make": "(name: str, /, **settings: Any) -> kvq_core.methods.base.Method",
    "measure_why": (
        "(run: kvq_core.record.fields.Record | str, lane: str, store: kvq_core.record.store.Store | None = None)"
        " -> kvq_core.analysis.why.Why"
    ),
    "packed_cache": (
        "(model: Any, method: kvq_core.methods.base.Method, path: Literal['auto', 'triton', 'torch'] = 'auto',"
        " sliding: bool = False) -> 'TicketCache'"
    ),
    "parse_spec": "(data: Any) -> kvq_core.spec.comparison.ComparisonSpec",
    "parse_study": "(data: Any) -> kvq_core.studies.spec.StudySpec",
    "roundtrip": (
        "(method: kvq_core.methods.base.Method, keys: torch.Tensor, values: torch.Tensor, "
        "queries: torch.Tensor | None = None, rope: tuple[torch.Tensor, torch.Tensor] | None = None, "
        "windows: bool = False, metadata: Literal['float32', 'float16'] = 'float16')"
        " -> kvq_core.pipeline.roundtrip.Roundtrip"
    ),
    "run": f"({_RUN}) -> kvq_core.record.fields.Record",
    "study": (
        "(spec: kvq_core.studies.spec.StudySpec, store: kvq_core.record.store.Store | None = None, *, "
        "workers: int = 1, shard: tuple[int, int] | None = None, executor: "
        "kvq_core.studies.executors.Executor | None = None, progress: collections.abc.Callable[[str, "
        "int, int], None] | None = None) -> kvq_core.studies.result.StudyResult"
    ),
}


def surface(public: typing.Any) -> str | dict[str, str]:
    """What ``SURFACE`` says of a public name."""
    if not (isinstance(public, type) and issubclass(public, BaseModel)):
        return str(inspect.signature(public)).replace("pathlib._local.", "pathlib.")  # as Python 3.13 has it
    types = typing.get_type_hints(public)
    return {
        name: inspect.formatannotation(types[name])
        + ("" if field.is_required() else f" = {field.get_default(call_default_factory=True)!r}")
        for name, field in public.model_fields.items()
    }


def loads(*commands: str) -> list[set[str]]:
    """The modules loaded in a process of its own after each of these lines of Python."""
    lines = [
        "import json, sys",
        *(f"{line}\nprint(json.dumps(list(sys.modules)), file=sys.stderr)" for line in commands),
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return [set(json.loads(line)) for line in done.stderr.splitlines()]


def test_the_public_names_are_these():
    assert kvq_core.__all__ == sorted(SURFACE)
    assert set(SURFACE) <= set(dir(kvq_core))


@pytest.mark.parametrize("name", SURFACE)
def test_a_public_name_takes_what_it_took(name):
    assert surface(getattr(kvq_core, name)) == SURFACE[name]


def test_a_name_that_is_not_public_is_missed():
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        kvq_core.quantise  # noqa: B018 (asking is the test)


@pytest.mark.slow
def test_importing_the_package_loads_no_library():
    alone, reached = loads("import kvq_core", "kvq_core.models.load")
    assert "kvq_core" in alone and not alone & {"torch", "pydantic", "numpy"}
    assert "kvq_core.models" in reached


@pytest.mark.parametrize(
    "start", ["run_module('kvq_core', run_name='__main__')", "run_path('app.py', run_name='__main__')"]
)
def test_help_loads_no_library(start):
    command = f"import runpy\nsys.argv = ['it', '--help']\ntry: runpy.{start}\nexcept SystemExit: pass"
    (loaded,) = loads(command)
    assert "argparse" in loaded
    assert not loaded & {"torch", "transformers", "numpy", "pandas", "plotly", "gradio", "pydantic"}
