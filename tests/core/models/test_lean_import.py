"""What loading a model does not import."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CODE = """
import sys
import kvq_core.models
assert "transformers" not in sys.modules
from transformers import AutoModelForCausalLM, DynamicCache, utils
import transformers.cache_utils
assert utils.is_hqq_available() and "hqq" not in sys.modules, "it is there, and was not imported"
assert not any(type(finder).__name__ == "WithoutHqq" for finder in sys.meta_path)
from hqq.core.quantize import Quantizer
"""


@pytest.mark.slow
def test_caches_are_had_without_hqq_which_is_there_for_its_method():
    pytest.importorskip("hqq", reason="needs requirements-formats.txt")
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
