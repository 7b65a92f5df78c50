"""Whatever file of prompts somebody has: every prompt of it is read, or told of, or the file is refused in one line."""

import csv
import io
import json
import random

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from kvq_core.errors import KvqError
from kvq_core.studies.sources import READERS, PromptSource
from tests.support.campaigns import inputs
from tests.support.damage import damaged

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
call = st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": st.just("look"), "arguments": plain | text})})
message = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"]) | plain,
        "from": st.sampled_from(["human", "gpt", "function_call"]) | plain,
        "content": text | plain | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": text}), max_size=3),
        "value": plain,
        "tool_calls": st.lists(call, max_size=2) | plain,
        "function_call": plain,
        "images": plain,
        "refusal": plain,
    },
)
chat = st.lists(message, max_size=4) | plain
row = st.fixed_dictionaries(
    {},
    optional={
        "prompt": text | plain,
        "messages": chat,
        "conversations": chat,
        "tools": st.just([{"name": "look"}]) | plain,
        "last": st.sampled_from(["answer", "context"]) | plain,
        "id": plain,
        "answer": plain,
        "body": st.fixed_dictionaries({"messages": chat}) | plain,
        "response": plain,
        "choices": plain | st.lists(st.fixed_dictionaries({"message": message | plain}), max_size=2),
        "doc": st.just({"a": 1}) | plain,
        "arguments": st.dictionaries(text, plain, max_size=2) | plain,
        "target": plain,
    },
)
good = [
    {"prompt": "One"},
    {"messages": [{"role": "user", "content": "Two"}], "model": "m"},
    {"conversations": [{"from": "human", "value": "Three"}]},
    {"id": "2", "prompt": "Four"},
]


def written(rows: list, suffix: str, encoding: str) -> bytes:
    match suffix:
        case ".jsonl":
            return "\n".join(map(json.dumps, rows)).encode(encoding)
        case ".json":
            return json.dumps(rows).encode(encoding)
        case ".txt":
            return "\n".join(str(each.get("prompt")) for each in rows).encode(encoding)
    table = [
        {name: value if isinstance(value, str) else json.dumps(value) for name, value in each.items()} for each in rows
    ]
    held = io.StringIO()
    if suffix == ".csv":
        writer = csv.DictWriter(held, list(dict.fromkeys(name for each in table for name in each)) or ["prompt"])
        writer.writeheader()
        writer.writerows(table)
        return held.getvalue().encode(encoding)
    return pd.DataFrame(table).to_parquet()


def read(folder, data: bytes, suffix: str, **more: object) -> int | None:
    """How many rows were read or told of; None where the file was refused."""
    file = folder / f"p{suffix}"
    file.write_bytes(data)
    try:
        found, left = PromptSource(file=str(file), **more).read()
    except KvqError as error:
        assert str(error) and "\n" not in str(error)
        return None
    assert len({each.id for each in found}) == len(found)
    return len(found) + len(left)


@inputs(40)
@given(
    st.lists(row, max_size=4),
    st.sampled_from(READERS),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.sampled_from([None, "answer", "context"]),
)
def test_no_row_is_lost(tmp_path_factory, rows: list, suffix: str, encoding: str, last: str | None) -> None:
    folder = tmp_path_factory.mktemp("files")
    data = written([*rows, *good], suffix, encoding)
    read(folder, data, suffix, last=last)
    count = read(folder, data, suffix, last=last, skip_broken=True)
    assert count is None or suffix == ".txt" or count == len(rows) + len(good)


@inputs(40)
@given(
    st.builds(
        lambda suffix, encoding, seed: (damaged(written(good, suffix, encoding), random.Random(seed)), suffix),
        st.sampled_from(READERS),
        st.sampled_from(["utf-8", "utf-16"]),
        st.integers(0, 2**32),
    )
    | st.tuples(st.binary(max_size=60), st.sampled_from(READERS)),
    st.booleans(),
)
def test_damage_is_refused_or_told(tmp_path_factory, given_: tuple[bytes, str], skip: bool) -> None:
    read(tmp_path_factory.mktemp("files"), *given_, skip_broken=skip)
