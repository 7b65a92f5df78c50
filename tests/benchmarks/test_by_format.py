"""The table of deployed formats: where each comes from, what queries are rounded to, which stands for its family."""

import pytest

from benchmarks import by_format, sources
from kvq_core.engines import engines
from kvq_core.methods import OFTEN, make, methods

FORMATS = [name for name, cls in methods().items() if ".formats." in cls.__module__]


def rows():
    lines = [line for line in by_format.formats_part().splitlines() if line.startswith("| `")]
    columns = by_format.COLUMNS.split(" | ")
    return {line.split("`")[1]: dict(zip(columns, line[2:-2].split(" | "), strict=True)) for line in lines}


@pytest.mark.slow
def test_every_format_has_a_row_with_its_source_after_fp16():
    found = rows()
    assert list(found) == ["fp16", *FORMATS]
    assert all(row["Source"].strip() for row in found.values())
    assert (
        "llama.cpp 0c1e57098, 2026: [ggml-common.h](https://github.com/ggml-org/llama.cpp/blob/0c1e57098/"
        in (found["q4_0"]["Source"])
    )
    assert found["kvarn"]["Source"].startswith("vLLM [pull request 46812](https://github.com/vllm-project/vllm/pull/")


@pytest.mark.parametrize("source", [s for found in sources.SOURCES.values() for s in found if s.ref])
def test_files_are_those_of_the_version_that_was_read(source):
    version = engines()[source.name].version.split(",")[0]
    assert source.files and (source.ref or "").removeprefix("v").startswith(version)


def test_no_source_is_of_a_method_that_is_gone():
    assert {*sources.SOURCES, *sources.OTHERS} <= methods().keys()


def test_queries_are_said_to_be_rounded_to_something_where_they_are():
    assert rows()["q8_0"]["Query"] == "q8_0 in blocks of 32 channels" and rows()["fp8"]["Query"] == "e4m3"
    for name, cls in methods().items():
        assert (cls.queries_to is not None) == (make(name).query_rounding() is not None), name


def test_a_row_says_since_when_its_first_engine_has_it():
    assert rows()["int8_per_token_head"]["How"].startswith("vLLM, since 0.20.0: `vllm serve M ")
    assert rows()["kvarn"]["How"].startswith("vLLM, in no release: `")


def test_of_a_family_of_formats_the_readme_has_one():
    shown = [name for name in FORMATS if by_format.of_family(name, methods()[name])]
    assert sorted(shown) == ["fp8", "nvfp4", "q8_0", "turboquant"] and set(shown) < set(OFTEN)
    assert len({methods()[name].__module__ for name in shown}) == len(shown)
