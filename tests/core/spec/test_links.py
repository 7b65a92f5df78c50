"""Links that hold a comparison: what is put in comes out, and nothing else ever does more than refuse."""

import base64
import json
import re
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvq_core.errors import KvqError, SpecError
from kvq_core.presets import presets
from kvq_core.spec import parse_spec
from kvq_core.spec.links import MAX_BYTES, MAX_CHARS, decode, encode

words = st.text(min_size=1, max_size=300).filter(lambda t: t.strip() and not re.search("[\ud800-\udfff]", t))
lane = st.one_of(
    st.fixed_dictionaries({"method": st.just("kivi")}, optional={"knobs": st.sampled_from([{"bits": 4}, {"bits": 2}])}),
    st.fixed_dictionaries(
        {"method": st.just("per_token")},
        optional={"tensors": st.sampled_from(["keys", "values"]), "layers": st.just([0, 3]), "sink_tokens": st.just(4)},
    ),
    st.fixed_dictionaries({"method": st.just("squat"), "knobs": st.just({"subspace_rank": 7})}),
)
comparison = st.fixed_dictionaries(
    {"prompt": words},
    optional={
        "lanes": st.lists(lane, max_size=4),
        "system": st.one_of(st.none(), st.just(""), words),
        "max_new_tokens": st.integers(1, 2048),
        "temperature": st.floats(0, 5),
        "seed": st.integers(0, 2**63 - 1),
        "chat": st.booleans(),
        "continuation": words,
        "notes": st.text(max_size=50).filter(str.isprintable),
        "stress": st.just({"key_outlier_scale": 8.0}),
        "capture": st.just({"detail": "off"}),
    },
)


def packed(data: bytes, version: str = "1") -> str:
    return f"{version}." + base64.urlsafe_b64encode(zlib.compress(data)).decode().rstrip("=")


@given(comparison)
def test_a_comparison_survives_its_link(data):
    spec = parse_spec(data)
    text = encode(spec)
    assert re.fullmatch(r"1\.[A-Za-z0-9_-]+", text) and len(text) <= MAX_CHARS
    assert decode(text).canonical() == spec.canonical()


@pytest.mark.parametrize("name", [n for n, p in presets().items() if len(p.spec.canonical()) < 10_000])
def test_presets_fit_into_links(name):
    assert decode(encode(presets()[name].spec)).canonical() == presets()[name].spec.canonical()


def test_only_what_differs_from_the_defaults_is_held():
    bare = encode(parse_spec({"prompt": "Hi"}))
    spelled = encode(parse_spec({"prompt": "Hi", "temperature": 0, "seed": 0, "max_new_tokens": 64, "chat": True}))
    assert bare == spelled and len(bare) < 120


def test_what_is_too_long_says_so():
    import random

    noise = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz ", k=40_000))
    with pytest.raises(SpecError, match="too long for a link"):
        encode(parse_spec({"prompt": noise}))
    with pytest.raises(SpecError, match="too long for a link"):  # short as a link, long once unpacked
        encode(parse_spec({"prompt": "a" * 300_000}))


GOOD = encode(parse_spec({"prompt": "Say hi.", "lanes": [{"method": "kivi"}]}))


@given(st.one_of(st.text(), st.text("1.AB-_eJx"), st.binary().map(packed), st.binary().map(lambda b: packed(b, "2"))))
def test_garbage_is_one_error(text):
    try:
        decode(text)
    except KvqError as error:
        assert "\n" not in str(error) and len(str(error)) < 600
    else:
        raise AssertionError(f"{text!r} was taken for a comparison")


@given(st.integers(0, len(GOOD) - 1), st.characters())
def test_a_changed_character_never_changes_the_comparison_unnoticed(at, character):
    changed = GOOD[:at] + character + GOOD[at + 1 :]
    try:
        found = decode(changed)
    except KvqError:
        return
    assert found.canonical() == decode(GOOD).canonical()  # the bits after the last byte say nothing


@pytest.mark.parametrize("keep", range(len(GOOD)))
def test_every_cut_is_noticed(keep):
    with pytest.raises(SpecError):
        decode(GOOD[:keep])


def test_a_bomb_is_refused_without_being_unpacked(monkeypatch):
    class Counting:
        def __init__(self, inner):
            self.inner = inner

        def decompress(self, data, limit):
            assert limit <= MAX_BYTES + 1
            return self.inner.decompress(data, limit)

    bomb = zlib.compress(b" " * 5_000_000, 9)
    text = "1." + base64.urlsafe_b64encode(bomb).decode().rstrip("=")
    assert len(text) < MAX_CHARS
    made = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", lambda: Counting(made()))
    with pytest.raises(SpecError, match="unpacks to more than"):
        decode(text)


@pytest.mark.parametrize(
    "text, says",
    [
        (packed(b'{"prompt": "x"}', "2"), "version 2"),
        (packed(b'{"prompt": "x", "evil": 1}'), "Unknown field 'evil'"),
        (packed(b'{"prompt": "x", "lanes": [{"method": "nosuch"}]}'), "nosuch"),
        (packed(b"[1]"), "object with fields"),
        (packed(b"[" * 100_000), "no comparison"),
        (packed(b"\xff\xfe"), "no comparison"),
        (packed(b'{"prompt": "x"}') + "AAAA", "cut off"),
        ("x" * (MAX_CHARS + 1), "at most 8,000"),
        ("", "holds no comparison"),
        (GOOD.replace(".", ""), "holds no comparison"),
    ],
)
def test_what_is_wrong_is_said(text, says):
    with pytest.raises(SpecError) as caught:
        decode(text)
    assert says in str(caught.value)


def test_json_of_a_link_is_the_canonical_form():
    raw = zlib.decompress(base64.urlsafe_b64decode(GOOD[2:] + "=" * (-len(GOOD[2:]) % 4)))
    assert json.loads(raw) == json.loads(decode(GOOD).canonical())
