"""The page, served once."""

import pytest

from kvq_core.record.events import Loading
from kvq_core.record.retention import Quota
from kvq_core.record.store import open_store
from tests.support.page_server import Asked
from tests.support.sample_record import make_sample
from ui.server.health import Health
from ui.service.services import Services


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    store = open_store(str(tmp_path_factory.mktemp("served")), Quota(size=10**9))
    store.save(*make_sample())
    services = Services(store, lambda spec, store: iter([Loading("x")]), None)
    with pytest.MonkeyPatch.context() as busy:
        # a machine too busy for Gradio's own look at the page is no reason not to serve it
        busy.setattr("gradio.networking.url_ok", lambda url: False)
        # a folder of its own: servers of other tests put their downloads into the usual one
        busy.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("uploads")))
        asked = Asked(services, Health(services))
        yield asked
        asked.blocks.close()
