"""``python -m kvq_core.models``: convert the bundled model once and print where it is."""

from kvq_core.models.source import bundled_folder

print(bundled_folder())
