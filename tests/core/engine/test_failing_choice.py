"""A choice of keys that goes wrong in the middle of a run takes its lane with it, and no other."""

import re
from pathlib import Path

import pytest

from kvq_core.methods import load_method_file
from kvq_core.spec import Lane
from tests.support.engine_runs import run_engine
from tests.support.own_methods import forget_afterwards, written
from tests.support.tiny_models import prompt_ids, tiny

WRONG = {
    "raise ValueError('late')": r"mine \(my.py\): ValueError: late",
    "return None": "select gave NoneType, not a tensor",
    "return read[:, 1:]": r"select gave bool \(2, 46\), not bool \(2, 47\) \(kv_heads, tokens\)",
    "return read / 0": r"select gave float32 \(2, 47\), not bool",
    "return ~read": "select left a KV head no key to read",
}
CHOICE = """
def choose(layer, queries, tokens):
    read = torch.ones(2, tokens, dtype=torch.bool)
    if tokens >= 47 and layer == 1:
        {wrong}
    return read
"""


@pytest.mark.slow
@pytest.mark.few(sample=2)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_choice_that_goes_wrong_in_a_step(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_afterwards(monkeypatch)
    top, fit = CHOICE.format(wrong=wrong), "return Fitted(Halves(), Halves(), select=choose)"
    load_method_file(written(tmp_path, top=top, fit=fit))
    ids, follow = prompt_ids(40), prompt_ids(13, 4)
    kivi = Lane(label="kivi", method="kivi", knobs={"group_size": 8, "residual_length": 8})
    beside = Lane(label="h2o", method="per_token", select={"by": "h2o", "heavy": 0.2})
    alone = run_engine(tiny("llama"), ids, [kivi, beside], 12, follow=follow)
    found = run_engine(tiny("llama"), ids, [Lane(label="own", method="mine"), kivi, beside], 12, follow=follow)
    error = found.state("own").error
    assert error is not None and re.match(WRONG[wrong], error) and "\n" not in error
    assert found.state("kivi").error is None and found.state("h2o").error is None
    for row in (0, 1):
        assert (found.logits()[1][1 + row] - alone.logits()[1][row]).abs().max() < 2e-3
    free = run_engine(tiny("llama"), ids, [kivi, Lane(label="own", method="mine")], 12, ignore_eos=True)
    error = free.state("own").error
    assert error is not None and re.match(WRONG[wrong], error) and len(free.state("kivi").token_ids) == 12


def test_a_choice_that_goes_wrong_while_a_later_turn_is_read_ends_its_lane_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_afterwards(monkeypatch)
    top = CHOICE.format(wrong="raise ValueError('late')")
    fit = "return Fitted(Halves(), Halves(), select=choose)"
    load_method_file(written(tmp_path, top=top, fit=fit))
    chunks = {"chunk": 20, "own_chunk": "raw"}
    lanes = [Lane(label=name, method=name, prefill=chunks) for name in ("mine", "per_token")]
    outcome = run_engine(tiny("llama"), prompt_ids(60), lanes, 3, ignore_eos=True)
    assert outcome.state("mine").error == "mine (my.py): ValueError: late"
    assert outcome.state("per_token").error is None and len(outcome.state("per_token").token_ids) == 3
