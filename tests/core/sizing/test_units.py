"""Bytes in words, and words as bytes."""

import pytest

from kvq_core.errors import SpecError
from kvq_core.sizing.fit import memory_of
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


@pytest.mark.parametrize("given", ["24000", "24B", "GB", "0", "0GB", "24 apples", "-1GB"])
def test_a_memory_has_a_number_and_a_unit(given: str) -> None:
    with pytest.raises(SpecError, match="24GB"):
        memory_of(given)


@pytest.mark.parametrize(
    ("given", "bytes_"),
    [("24", 24e9), ("22.5", 22.5e9), ("24G", 24e9), ("24 gb", 24e9), ("80Gi", 80 * 2**30), ("24564MiB", 24564 * 2**20)],
)
def test_a_memory_without_a_unit_is_the_one_that_it_can_only_be(given: str, bytes_: float) -> None:
    assert memory_of(given) == bytes_
