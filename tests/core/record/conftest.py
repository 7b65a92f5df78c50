"""A store of each kind."""

import uuid

import pytest


@pytest.fixture(params=["path", "file://", "memory://"])
def url(request, tmp_path):
    return {
        "path": str(tmp_path / "s"),
        "file://": f"file://{tmp_path}/s",
        "memory://": f"memory://{uuid.uuid4().hex}/s",
    }[request.param]
