"""``generate`` through interpreted Triton kernels answers as through the reference, which others hold to the lane."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.campaigns import whole

ROOT = Path(__file__).parents[2]
CASES = {
    "kivi": {"residual_length": 32},
    "innerq": {"sink_tokens": 4, "recent_tokens": 28},
    "per_token": {"bits": 4, "residual_length": 8},
    "per_channel": {"residual_length": 32},
    "squat": {"residual_length": 32},
    "squat pre": {"residual_length": 32, "rope": "pre"},
    "innerq symmetric": {"mode": "symmetric", "sink_tokens": 4, "recent_tokens": 8},
    "innerq asymmetric": {"mode": "asymmetric", "sink_tokens": 4, "recent_tokens": 8},
    "innerq hybrid_prefill": {"mode": "hybrid_prefill", "sink_tokens": 4, "recent_tokens": 8},
    "svdq": {"schedule": [8, 4, 2, 1, 1, 0, 0, 0]},
    "svdq V4": {"value_bits": 4, "per_head": True},
    "qaq once": {"update": "once", "key_tolerance": 0.01, "value_tolerance": 0.01},
    "qaq every step": {"update": "every_step", "key_tolerance": 0.01, "value_tolerance": 0.01},
}
SCRIPT = """
import json, sys, torch
sys.path.insert(0, "tests/kernels")
import conftest
conftest.patch_once(), conftest.round_fma_once()
import kvq_core
import kvq_core.models.captured as captured
from kvq_kernels import launch, paths_taken
from tests.support.tiny_models import prompt_ids, tiny
launch.REGISTERS //= 8  # as many programs less are interpreted


class Step(captured.CapturedStep):
    def __init__(self, *given):
        super().__init__(*given)
        self.capture = lambda forward: forward  # what a CUDA graph is, without one: the launches, and nothing else


captured.CapturedStep = Step
model, ids = tiny("llama", layers=2), torch.tensor([prompt_ids(93)])  # three tokens before groups are packed
for name, knobs in json.loads(sys.argv[1]).items():
    method, found = kvq_core.make(name.split()[0], **knobs), []
    for path in ("torch", "triton"):
        with paths_taken() as taken:
            found.append(model.model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=None, max_new_tokens=5,
                past_key_values=kvq_core.packed_cache(model.model, method, path),
            ).tolist())
    assert taken and all(paths == {"triton"} for paths in taken.values()), (name, taken)
    assert found[0] == found[1], (name, found)
    if name in ("kivi", "innerq"):  # rows of several lengths, and steps that are played again
        short = prompt_ids(30, 1)
        given = torch.tensor([ids[0].tolist(), [0] * (93 - len(short)) + short])
        mask = torch.tensor([[1] * 93, [0] * (93 - len(short)) + [1] * len(short)])
        answers = [
            model.model.generate(
                given, attention_mask=mask, do_sample=False, eos_token_id=None, max_new_tokens=4,
                past_key_values=kvq_core.packed_cache(model.model, method, path), **how,
            ).tolist()
            for path, how in (("torch", {}), ("triton", {"custom_generate": kvq_core.captured_steps}))
        ]
        assert answers[0] == answers[1], (name, answers)
    print(name)
"""


@pytest.mark.compiler
@pytest.mark.long("interpret")
@pytest.mark.timeout(3600)
def test_generate_answers_as_the_reference(passed_before):
    """In a process of its own: Triton reads TRITON_INTERPRET when it is imported. A sample is the first."""
    cases = CASES if whole() else dict(list(CASES.items())[:1])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT, json.dumps(cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.split("\n")[:-1] == list(cases)
    passed_before()
