"""A model that studies load by its path, and a store of their own."""

from pathlib import Path

import pytest

from kvq_core.record.store import open_store
from tests.support.study_models import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))
