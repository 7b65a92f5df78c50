"""Quantizing ahead of time: what a group along tokens costs does not depend on the version of Triton."""

import json
import subprocess
import sys

import pytest

from benchmarks.aot.compiler import compile_for
from benchmarks.aot.forms import CAPABILITIES, quantize_forms
from benchmarks.aot.versions import Unavailable, environment
from tests.support.campaigns import whole

MOST = {"asymmetric": 23, "hybrid": 37}  # instructions an element
COUNTED = """
import json, sys
sys.path[:0] = [".", "kernels"]
from benchmarks.aot.compiler import compile_for
from benchmarks.aot.forms import CAPABILITIES, quantize_forms
print(json.dumps([
    (form.method, made.work, made.stack)
    for form in quantize_forms() for made in (compile_for(form.launch, each, form.tile) for each in CAPABILITIES)
]))
"""


@pytest.mark.compiler
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_aot_threads_exchange_only_what_they_store_of_groups_of_tokens(capability):
    """A thread has a whole group; codes, scales and zero-points go through shared memory once, before they are stored
    side by side."""
    for form in quantize_forms():
        if form.method.endswith("tokens"):
            made = compile_for(form.launch, capability, form.tile)
            assert made.loop.shared <= 6 and made.loop.barriers <= 5 and made.stack == 0, (form.name, made)
            assert 0 < made.work <= MOST[form.method.split("-")[0]], (form.name, made)


@pytest.mark.compiler
@pytest.mark.long("compile")
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not whole(), reason="make test-long compiles with other versions of Triton")
@pytest.mark.parametrize("version", ["3.4", "3.6", "newest"])
def test_aot_quantizing_costs_the_same_with_other_versions_of_triton(version):
    try:
        env = environment(version)
    except Unavailable as reason:
        pytest.skip(f"Triton {version} cannot be had: {reason}")
    done = subprocess.run([sys.executable, "-c", COUNTED], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for method, work, stack in json.loads(done.stdout.splitlines()[-1]):
        if method.endswith("tokens"):
            assert 0 < work <= MOST[method.split("-")[0]] and stack == 0, (version, method, work, stack)
