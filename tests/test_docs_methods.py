"""docs/methods.md: the contract's members, and its example run."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from kvq_core.codecs.codec import Codec
from kvq_core.methods import Method

ROOT = Path(__file__).parent.parent


def read(name: str | Path) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def public(cls: type) -> set[str]:
    """What a class itself declares, pydantic's own members left out."""
    pydantics = set(dir(BaseModel))
    return {name for name in {**vars(cls), **cls.__annotations__} if not name.startswith("_")} - pydantics


@pytest.mark.parametrize("cls", [Method, Codec], ids=lambda cls: cls.__name__)
def test_every_member_of_the_contract_has_its_row(cls):
    part = read("docs/methods.md").split(f"### {cls.__name__}\n")[1].split("\n#")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", part, re.M)) == sorted(public(cls))


@pytest.mark.long("programs", sample=0)
@pytest.mark.real_model
def test_the_example_method_works_as_its_page_says(tmp_path):
    """The page's files in a copy of the project, its commands one after the other."""
    shutil.copytree(ROOT / "kvq_core", tmp_path / "kvq_core")
    for name in ("kernels", "presets"):
        (tmp_path / name).symlink_to(ROOT / name)
    page = read("docs/methods.md")
    files = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", page, re.S)
    assert len(files) == 3
    for name, content in files:
        assert not (ROOT / name).exists(), f"{name} is part of the project: choose another name for the example"
        (tmp_path / name).write_text(content, encoding="utf-8")
    said = []
    for line in re.findall(r"```sh\n(.*?)```", page, re.S):
        for command in line.strip().splitlines():
            program, *arguments = shlex.split(command)
            assert program == "python"
            done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
            said.append(done.stdout)
    tensors, listing, comparison = said
    plain, centred = (float(error) for error in re.findall(r"key error ([\d.]+)", tensors))
    assert centred < plain
    plain, centred = (float(bits) for bits in re.findall(r"at ([\d.]+) bits", tensors))
    assert plain < centred < plain + 0.5
    assert "centred - Centred\n  Keys are quantized per token around the prompt's mean key" in listing
    assert re.search(r"^Per token +\d", comparison, re.M) and re.search(r"^Centred +\d", comparison, re.M)
