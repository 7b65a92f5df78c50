"""Bytes in words."""

import pytest

from kvq_core.sizing.units import size_text


@pytest.mark.parametrize(
    ("nbytes", "said", "closer"),
    [
        (0, "0 B", "0 B"),
        (812, "812 B", "812 B"),
        (40_000, "40 KB", "40.0 KB"),
        (812_345, "812 KB", "812 KB"),
        (1.1e9, "1.10 GB", "1.10 GB"),
        (17.18e9, "17 GB", "17.2 GB"),
        (250e12, "250 TB", "250 TB"),
        (1.5e15, "1,500 TB", "1,500 TB"),
    ],
)
def test_sizes_have_a_few_digits_in_powers_of_1000(nbytes: float, said: str, closer: str) -> None:
    assert (size_text(nbytes), size_text(nbytes, 3)) == (said, closer)
