"""What is found is not kept from test to test."""

from pathlib import Path

import pytest

from kvq_core.inspection import look


@pytest.fixture(autouse=True)
def _nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "_memo", lambda model: tmp_path / f"{model.model_hash}.json")
