"""How many operations a decode step of a comparison hands to torch, which a GPU launches one by one, and how often it
waits for the device. No GPU is needed; nothing is timed.

``--json`` prints {"generate", "inside", "looked", "outside", "due", "host_waits"}: operations of one step, views left
out, of plain transformers ``generate()`` and, of a comparison of seven lanes and the noise floor with captures, of the
model's pass over all rows, in most steps and in those whose attention captures look at, of the rest (stores, choices,
scores) and, apart from it, of storing the tokens that are due in this step. ``generate`` is counted on a CPU in
float32 with random weights; the comparison where it takes a GPU's way, on a device that holds no numbers, for which
torch's ``meta`` stands in. Waits, of the step with most, are values that the host asks for, copies to it, and shapes
that depend on values. Answers are made up there, another for each row, so that every lane has a row of its own text.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from kvq_core.capture.plan import plan_of
from kvq_core.engine.encoded_lanes import EncodedLanes
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.rows import Rows
from kvq_core.engine.script import Script
from kvq_core.machine import threads
from kvq_core.models import survey
from kvq_core.models.loaded import LoadedModel
from kvq_core.models.lockstep import ATTENTION, register_attention
from kvq_core.pipeline.batch import Batch
from kvq_core.spec import parse_spec

LAYERS, PROMPT, STEPS, ANSWER = 32, 300, 12, 64
LANES: list[dict[str, Any]] = [
    {"method": "kivi", "knobs": {"bits": 4}},
    {"method": "kivi", "knobs": {"bits": 2}},
    {"method": "innerq"},
    {"method": "squat", "knobs": {"bits": 2, "block_size": 16}},
    {"method": "q8_0"},
    {"method": "per_token", "knobs": {"bits": 4}},
    {"method": "per_channel", "knobs": {"bits": 4}},
]
META = torch.device("meta")
aten = torch.ops.aten
# of a tensor's place and shape alone: no kernel is launched for them
VIEWS = ("_unsafe_view", "lift_fresh", "alias", "detach", "empty", "new_empty", "empty_like", "empty_strided")
SHAPED = (aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim)  # by values


class Steps(TorchDispatchMode):
    """Operations of every step by name, in the order of the steps: ``inside`` the model's pass, ``outside``, and there
    what storing the tokens takes that are ``due``; and ``waits`` of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: list[Counter[str]] = []
        self.outside: list[Counter[str]] = []
        self.due: list[Counter[str]] = []
        self.waits: list[Counter[str]] = []
        self._now: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not (func.is_view or func.overloadpacket.__name__ in VIEWS):
            self._now[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    @contextmanager
    def passes(self) -> Iterator[None]:
        """Within it a pass over the rows begins a step."""
        passed, store = EncodedLanes.passed, Rows.store_tokens

        def counted(lanes: EncodedLanes, *args: Any, **more: Any) -> Any:
            for of_step in (self.inside, self.outside, self.due, self.waits):
                of_step.append(Counter())
            self._now, self._waits = self.inside[-1], self.waits[-1]
            try:
                return passed(lanes, *args, **more)
            finally:
                self._now = self.outside[-1]

        def stored(rows: Rows, *args: Any, **more: Any) -> Any:
            self._now = self.due[-1]
            try:
                return store(rows, *args, **more)
            finally:
                self._now = self.outside[-1]

        with mock.patch.object(EncodedLanes, "passed", counted), mock.patch.object(Rows, "store_tokens", stored):
            yield


class OnDevice(Steps):
    """Steps on a device that holds no numbers: they take the way of a GPU, what waits for a number is counted, and
    answers to it are made up."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        each = [x for given in args for x in (given if isinstance(given, list | tuple) else [given])]
        there = any(isinstance(x, torch.Tensor) and x.is_meta for x in each)
        if func is aten._local_scalar_dense.default and there:
            self._waits["item"] += 1
            # of a question whether all are as they should be, or any is not, the answer that lets a run go on
            return self._last is not aten.any if args[0].dtype == torch.bool else made_up(args[0]).item()
        self._last = func.overloadpacket
        if func is aten._to_copy.default and there and kwargs.get("device", META) != META:
            self._waits["cpu"] += 1
            return made_up(args[0]).to(kwargs.get("dtype") or args[0].dtype)
        if func is aten.copy_.default and not args[0].is_meta and there:
            self._waits["cpu"] += 1
            return args[0].copy_(made_up(args[1]))
        if func.overloadpacket in SHAPED and there:
            self._waits[func.overloadpacket.__name__] += 1
            return args[0].new_zeros(1, args[0].dim(), dtype=torch.long)
        if func in (aten.index.Tensor, aten.index_put_.default) and there:
            args = (args[0], [self._numbers(at) for at in args[1]], *args[2:])
        if there or kwargs.get("device") == META:
            return super().__torch_dispatch__(func, types, args, kwargs)
        return func(*args, **kwargs)  # on the host: nothing is launched

    def _numbers(self, at: torch.Tensor | None) -> torch.Tensor | None:
        """A boolean index as one place."""
        if at is None or at.dtype not in (torch.bool, torch.uint8):
            return at
        self._waits["boolean index"] += 1
        assert at.dim() == 1, f"a boolean index of {at.dim()} dimensions"
        return at.new_zeros(1, dtype=torch.long)


def made_up(x: torch.Tensor) -> torch.Tensor:
    """As many numbers, different ones for a few rows."""
    return torch.arange(x.numel()).to(x.dtype).view(x.shape)


def build(layers: int = LAYERS) -> LoadedModel:
    """A small Llama of random weights: operations depend on the number of layers, not on their size."""
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
        max_position_embeddings=4096,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    register_attention()
    model.eval().requires_grad_(False).set_attn_implementation(ATTENTION)
    of = {"weights_hash": "0" * 16, "model_hash": "0" * 16}
    return LoadedModel(id="counted", title="counted", revision=None, model=model, tokenizer=None, **of)


def without_numbers(model: LoadedModel) -> LoadedModel:
    """The model on the device ``meta``, with what is found by running it, which is found before."""
    rope, found = model.rope(PROMPT + ANSWER), (model.shape, model.rotations, model.scoring)
    assert all(found)
    twin = deepcopy(model.model).to(META)
    survey._known[twin] = survey.survey(model.model)
    there = model.computed_by(twin)
    tables = {name: getattr(rope, name).to(META) for name in ("cos", "sin", "norm")}
    there.rope = lambda tokens: replace(rope, **tables)  # type: ignore[method-assign]
    return there


def ids_of(tokens: int = PROMPT) -> list[int]:
    return torch.randint(1, 512, (tokens,), generator=torch.Generator().manual_seed(0)).tolist()


def generate_step(model: LoadedModel, ids: list[int]) -> int:
    """Operations of one step of plain generate(), from two lengths of answer."""
    model.model.set_attn_implementation("sdpa")
    found = []
    for new in (4, 4 + STEPS):
        with Steps() as counted, torch.no_grad():
            prompt = torch.tensor([ids])
            ends = {"max_new_tokens": new, "min_new_tokens": None, "eos_token_id": None, "pad_token_id": 0}
            model.model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, **ends)
        found.append(counted._now.total())
    model.model.set_attn_implementation(ATTENTION)
    return round((found[1] - found[0]) / STEPS)


def comparison(model: LoadedModel, ids: list[int], counted: Steps, detail: str = "normal", steps: int = STEPS) -> None:
    """Lanes beside the reference on one prompt; every step is counted."""
    lanes = [{**lane, "label": f"{at}"} for at, lane in enumerate(LANES)]
    spec = parse_spec(
        {"prompt": "-", "max_new_tokens": ANSWER, "ignore_eos": True, "lanes": lanes, "capture": {"detail": detail}}
    )
    prefill = SharedPrefill(model.stepping(), ids)
    for _ in prefill.run():
        pass
    batch = Batch(model, spec, Script.of_prompt(ids), prefill, list(spec.lanes), plan_of(model, spec, len(ids)))
    in_turn = mock.patch.object(threads, "in_order", lambda works, _: (work() or at for at, work in enumerate(works)))
    with in_turn:  # and not in a thread that is not counted
        for _ in batch.encode():
            pass
    failed = [state.error for state in batch.decode.states if state.error]
    assert not failed, failed
    with counted.passes():
        for _ in islice(batch.steps(), steps):  # and not to the end, where captures are closed
            pass


def measure(layers: int = LAYERS, detail: str = "normal") -> tuple[dict[str, int], dict[str, Counter[str]]]:
    """The counts, and what a step is made of."""
    torch.set_num_threads(1)  # operations of other threads would not be seen
    ids, model = ids_of(), build(layers)
    with OnDevice() as there:
        comparison(without_numbers(model), ids, there, detail)
    later = slice(3, None)  # in the first ones lanes part
    order = sorted(there.inside[later], key=Counter.total)
    steps = {"inside": order[len(order) // 2], "looked": order[-1], "outside": there.outside[-1], "due": there.due[-1]}
    steps["host_waits"] = max(there.waits[later], key=Counter.total)
    return {"generate": generate_step(model, ids)} | {name: of.total() for name, of in steps.items()}, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the counts alone, as JSON")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--captures", default="normal", help="detail of the captures: off, normal, ...")
    asked = parser.parse_args()
    found, parts = measure(asked.layers, asked.captures)
    if asked.json:
        print(json.dumps(found))
        return
    print(f"{asked.layers} layers, {len(LANES)} lanes, captures {asked.captures}: {found}")
    for where, step in parts.items():
        print(f"  {where}, one step: " + ", ".join(f"{name} {count}" for name, count in step.most_common(25)))


if __name__ == "__main__":
    main()
