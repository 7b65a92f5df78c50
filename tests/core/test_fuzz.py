"""Whatever arrives from outside, a form, an address, an id, a browser's memory, a file of the store, is answered or
refused with a KvqError; no other exception leaves what reads it."""

import contextlib
import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvq_core.errors import KvqError, StoreError
from kvq_core.record.files import ARRAYS, MANIFEST, RECORD
from kvq_core.record.store import open_store
from kvq_core.spec import parse_spec
from kvq_core.spec.links import decode
from tests.support.campaigns import inputs
from tests.support.damage import damaged
from tests.support.sample_record import make_sample
from ui.form.filling import open_page
from ui.form.values import FIELDS, to_comparison
from ui.panels.history import history_html, remember
from ui.service.services import Services

text = st.text(st.characters(), max_size=80)  # lone surrogates and control characters included
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=6,
)
named = st.sampled_from(["kivi", "squat", "svdq", "innerq", "qaq", "commvq", "per_token", "fp16", "none such"])
knob = st.sampled_from(["bits", "group_size", "schedule", "sink_tokens", "subspace_rank", "target_bits", "codebooks"])
lane = st.fixed_dictionaries(
    {"uid": st.integers(), "method": named | plain, "knobs": st.dictionaries(knob | text, plain, max_size=3) | plain},
    optional={"label": plain, "tensors": plain, "layers": plain, "sink_tokens": plain, "recent_tokens": plain},
)
rule = st.fixed_dictionaries(
    {"method": named | plain},
    optional={
        "tensors": st.sampled_from(["keys", "values", "both"]) | plain,
        "layers": st.lists(st.integers(-1, 9), max_size=3) | plain,
        "tokens": st.sampled_from(["all", "first:4", "last:0"]) | st.lists(st.lists(st.integers(), max_size=3)) | plain,
        "knobs": st.dictionaries(knob | text, plain, max_size=3) | plain,
        "center": plain,
    },
)
lane |= st.fixed_dictionaries({"uid": st.integers(), "rules": st.lists(rule, max_size=4) | plain})
near = {  # mostly of the right kind, so that more than the first check is reached
    "model": text,
    "prompt": text,
    "chat": st.booleans(),
    "max_new_tokens": st.integers(-1, 5000),
    "temperature": st.floats(),
    "seed": st.integers(),
    "lanes": st.lists(lane, max_size=10),
}


@pytest.mark.slow
@inputs(50)
@given(plain | st.fixed_dictionaries({}, optional={name: near.get(name, plain) | plain for name in (*near, "stress")}))
def test_any_data_as_a_comparison(data):
    with contextlib.suppress(KvqError):
        parse_spec(data)


@pytest.mark.slow
@inputs(20)
@given(
    st.fixed_dictionaries({name: near.get(name, plain) | plain for name in FIELDS}),
    st.lists(lane, max_size=9),
    st.dictionaries(st.sampled_from(["notes", "score_chunk", "revision", "odd"]), plain),
)
def test_any_form(values, lanes, rest):
    with contextlib.suppress(KvqError):
        to_comparison(values, lanes, rest)


@pytest.fixture(scope="module")
def services(tmp_path_factory) -> Services:
    return Services(open_store(str(tmp_path_factory.mktemp("store"))), None, None)


hexadecimal = st.text("0123456789abcdef", min_size=15, max_size=17)
paths = st.sampled_from(["../../etc/passwd", "/etc/passwd", "%2e%2e/", "0" * 16 + "/../x", "\x00" * 16, "memory://x"])


@pytest.mark.slow
@inputs(20)
@given(
    st.dictionaries(st.sampled_from(["run", "vs", "c", "preset", "learn", "key"]), text | hexadecimal | paths),
    plain | st.lists(st.dictionaries(st.sampled_from(["id", "key", "prompt"]), plain)),
)
def test_any_address_and_any_browser_memory(services, query, kept):
    asked = SimpleNamespace(query_params=query, headers={}, session_hash="s", client=None)
    shown, message, form = open_page(asked, services, kept)
    assert shown is None and isinstance(message, str) and form


@inputs(50)
@given(text | hexadecimal | paths | plain)
def test_any_run_id(services, run):
    with pytest.raises(StoreError):
        services.records.get(run)


@inputs(50)
@given(text)
def test_any_link(link):
    for given_text in (link, f"1.{link}"):
        with pytest.raises(KvqError):
            decode(given_text)


@inputs(20)
@given(plain | st.lists(st.dictionaries(st.sampled_from(["id", "when", "prompt", "model", "lanes", "key"]), plain)))
def test_any_browser_memory_of_runs(kept):
    record = make_sample()[0]
    assert isinstance(history_html(kept), str) and remember(kept, record)[0]["id"] == record.id


@pytest.mark.slow
@inputs(50)
@given(st.integers(0, 2**32), st.sampled_from([RECORD, ARRAYS, MANIFEST]))
def test_any_damage_to_a_stored_run(tmp_path_factory, seed, name):
    store, (record, arrays) = _one_run(tmp_path_factory)
    file = Path(store.root) / record.id / name
    whole = file.read_bytes()
    bad = damaged(whole, random.Random(seed))
    try:
        file.write_bytes(bad)
        if bad == whole:
            return
        with pytest.raises(StoreError):
            store.load(record.id)
        assert isinstance(store.list(), list)
    finally:
        file.write_bytes(whole)


@inputs(20)
@given(st.dictionaries(text, plain, max_size=5) | plain)
def test_a_manifest_that_says_anything(tmp_path_factory, said):
    store, (record, arrays) = _one_run(tmp_path_factory)
    file = Path(store.root) / record.id / MANIFEST
    whole = file.read_bytes()
    try:
        for data in (said, {**json.loads(whole), **(said if isinstance(said, dict) else {"record": said})}):
            file.write_bytes(json.dumps(data).encode())
            with contextlib.suppress(StoreError):
                assert store.load(record.id)[0].id == record.id
            assert isinstance(store.list(), list)
    finally:
        file.write_bytes(whole)


_held: list = []


def _one_run(tmp_path_factory):
    if not _held:
        run = make_sample()
        store = open_store(str(tmp_path_factory.mktemp("runs")))
        store.save(*run)
        _held.append((store, run))
    return _held[0]
