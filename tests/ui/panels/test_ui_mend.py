"""Mending from the look: offered where keys carry constants, told as it goes, refused in one notice, and what came of
it as a model to run."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvq_core.errors import ModelError
from kvq_core.machine.progress import Progress
from kvq_core.mend.mend import MendRequest
from kvq_core.record.store import open_store
from kvq_core.settings import settings
from ui.panels import mend as panel
from ui.service.services import Services

BIASED = SimpleNamespace(at_risk_layers=(0,), facts=SimpleNamespace(usual_bias=2.0))
KLD = {"before": 1.2, "before_low": 1.0, "before_high": 1.5, "after": 0.02, "after_low": 0.01, "after_high": 0.03}


class Found:
    """What mending gives, as far as the page reads it."""

    def __init__(self, request: MendRequest, written: bool) -> None:
        self.request, self.written = request, written

    def data(self) -> dict[str, Any]:
        told = {"format": "q4_0/q4_0", "prompts": 12, "full_precision_kld": 3e-5, "changed_bytes": 794, "kld": KLD}
        return told | {"written": self.written, "why_not": None if self.written else "the gain's interval holds 0"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    return tmp_path / "model.gguf"


def updates(model: Path, mend: Any = None) -> list[list[Any]]:
    services = Services(open_store(), None, None)  # type: ignore[arg-type]
    services.mend = mend

    async def watch() -> list[list[Any]]:
        return [update async for update in panel.stream(str(model), "s/mending", "", services)]

    return asyncio.run(watch())


def told(file: Path, written: bool) -> str:
    def mend(request: MendRequest):  # type: ignore[no-untyped-def]
        yield Progress("Choosing scales", 1, 4)
        if written and request.out is not None:
            request.out.write_bytes(b"GGUF")
        yield Found(request, written)

    return str(updates(file, mend)[-1][0])


@pytest.mark.parametrize(("at_risk", "bias", "offered"), [((0,), 2.0, True), ((), 2.0, False), ((0,), None, False)])
def test_it_is_offered_where_keys_carry_constants(at_risk, bias, offered, file):  # type: ignore[no-untyped-def]
    found = SimpleNamespace(at_risk_layers=at_risk, facts=SimpleNamespace(usual_bias=bias))
    html = panel.offer_html(found, "smollm2-135m-instruct-q4_1")
    assert ("data-mend" in html) is ("python -m kvq_core mend" in html) is offered
    assert panel.offer_html(None, "x") == ""


def test_a_public_instance_tells_the_command_and_has_no_button(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVQ_MODELS", "smollm2-135m-instruct-q4_1")
    assert settings().public
    html = panel.offer_html(BIASED, "x")  # type: ignore[arg-type]
    assert "data-mend" not in html and "python -m kvq_core mend" in html
    with pytest.raises(ModelError, match="writes no model files"):
        panel.request_for(str(file))


def test_what_was_gained_is_told_with_its_interval_and_the_file_to_use(file: Path) -> None:
    html = told(file, written=True)
    assert "1.2 (1.0 to 1.5) before, 0.020 (0.010 to 0.030) after" in html and "794 bytes changed" in html
    out = panel.request_for(str(file)).out
    assert f'data-mended="{out}"' in html
    assert "Mended before" in updates(file)[0][0] and str(out) in updates(file)[0][0], "nothing is measured again"


def test_another_file_of_the_same_name_is_another_model(file: Path, tmp_path: Path) -> None:
    told(file, written=True)
    (other := tmp_path / "other" / file.name).parent.mkdir()
    other.write_bytes(b"GGUF, another one")
    assert "Mended before" in updates(file)[0][0]
    asked: list[MendRequest] = []
    html = str(updates(other, lambda request: asked.append(request) or iter([Found(request, False)]))[-1][0])
    assert asked and asked[0].model == other and "No file was written" in html


def test_where_nothing_was_gained_it_says_why_and_there_is_no_file(file: Path) -> None:
    html = told(file, written=False)
    assert "No file was written" in html and "the gain&#x27;s interval holds 0" in html and "data-mended" not in html


def test_a_failure_is_one_notice(file: Path) -> None:
    def mend(request: MendRequest):  # type: ignore[no-untyped-def]
        yield Progress("Loading the model", 0, 1)
        raise ModelError("m.gguf is mended already.")

    html = str(updates(file, mend)[-1][0])
    assert "cannot be mended" in html and "is mended already" in html and "Traceback" not in html
    assert "cannot be mended" in str(updates(file.parent / "none.gguf")[-1][0])
