"""``python -m kvq_core.models``: fetch and convert the bundled model, once, and print where it is."""

import sys

from kvq_core.errors import KvqError
from kvq_core.models import bundled

try:
    bundled.bundled_gguf()
    print(bundled.convert_bundled(bundled.folder()))
except KvqError as error:
    sys.exit(str(error))
