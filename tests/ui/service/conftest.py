"""An engine whose runs a test lets go."""

import pytest

from tests.support.gated_runs import Engine


@pytest.fixture
def engine():
    return Engine()
