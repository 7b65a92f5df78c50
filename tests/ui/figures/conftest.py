"""The run whose figures are drawn."""

import pytest

from tests.support.ui_record_factory import make_run


@pytest.fixture(scope="package")
def run():
    return make_run()
