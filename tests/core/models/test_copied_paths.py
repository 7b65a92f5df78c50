"""Paths of model files as file managers, shells and browsers put them into the clipboard."""

import pytest

from kvq_core.errors import ModelError
from kvq_core.models import outline
from kvq_core.models.source import known_as
from tests.support.gguf_files import source, write


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("form", ['"{}"', "'{}'", " {}\n", "file://{}", "file://localhost{}"])
def test_a_path_is_taken_as_it_was_copied(tmp_path, form: str) -> None:
    """From a file manager, a shell or a browser; with the blanks of its name as a browser has them."""
    file = write(tmp_path / "my model.gguf", source("llama"))
    given = str(file).replace(" ", "%20") if form.startswith("file:") else str(file)
    assert known_as(form.format(given)) == known_as(str(file))


@pytest.mark.parametrize("given", ["~nobody-here/m.gguf", "file://[m.gguf", "file:///m%00.gguf", "x" * 300 + ".gguf"])
def test_a_path_that_can_be_none_is_refused_in_one_line(given: str) -> None:
    with pytest.raises(ModelError, match="is not a model directory or"):
        outline(given)
