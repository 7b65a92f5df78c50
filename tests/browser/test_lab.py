"""The lab: what the page stores is what the program's codecs store, on the tensors that ship, and it can be used."""

import base64
import json
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from kvq_kernels import unpack
from safetensors.torch import load_file
from torch import Tensor

from kvq_core.codecs.stream import Stream
from kvq_core.engine.fit import FitSource, MethodFit
from kvq_core.engine.prefill import LayerGroup
from kvq_core.methods import ModelRef, make
from kvq_core.methods.formats.planes import unpack_planes
from kvq_core.methods.innerq import key_norms
from kvq_core.models.rope import Rope
from kvq_core.spec import Transforms, parse_spec
from scripts.lab_tensors import restored, weights
from ui.export.lab import TENSORS, lab, told

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]
QWEN, SMOL = (model["id"] for model in told()["models"])
HEADS = [{"model": QWEN, "layer": 1, "head": 1}, {"model": SMOL, "layer": 8, "head": 2}]
GROUPS = [
    {"format": "groups", "axis": axis, "keys": bits, "values": bits, "group": group, "recent": recent}
    for axis, (bits, group, recent) in product(
        ("token", "channel"), ((1, 8, 0), (2, 32, 0), (3, 16, 32), (4, 64, 96), (8, 32, 128))
    )
]
PAPERS = [
    {"format": name, "keys": bits, "values": 2, "group": group, "sink": sink, "recent": recent}
    for name, (bits, group, sink, recent) in product(
        ("kivi", "innerq"), ((2, 32, 0, 32), (3, 64, 4, 64), (4, 16, 32, 96))
    )
]
BLOCKS = [{"format": name, "rotate": turn} for name, turn in product(("q4_0", "q8_0"), ("none", "hadamard"))]
TURNED = [
    {**state, "rotate": turn, "center": center, "fold": fold}
    for state in (GROUPS[1], GROUPS[6], PAPERS[0], PAPERS[3])
    for turn, center, fold in (
        ("hadamard", "mean", "keys"),
        ("none", "mean_after_rope", "none"),
        ("none", "none", "keys"),
    )
]
STATES = [
    {**head, "rotate": "none", "center": "none", "fold": "none", "sink": 0, **state}
    for head in HEADS
    for state in (*GROUPS, *PAPERS, *BLOCKS, *TURNED, {**GROUPS[1], "values": 16}, {**GROUPS[1], "keys": 16})
]
STORED = """state => {
  const text = (array) => { let out = ""; new Uint8Array(array.buffer, array.byteOffset, array.byteLength).forEach(b => out += String.fromCharCode(b)); return btoa(out); };
  lab.go(state);
  const { keys, values, lane, score, moved } = lab.stored();
  const of = (part) => Object.fromEntries(Object.entries(part).map(([name, own]) => [name, ArrayBuffer.isView(own) ? text(own) : own]));
  return { keys: of(keys), values: of(values), lane, score, moved };
}"""  # noqa: E501


@cache
def head_of(model: str, layer: int, head: int) -> tuple[FitSource, Tensor]:
    """What the program has of a head: its keys after RoPE and values (1, 1, tokens, head_dim), and the queries."""
    index, own = next((i, own) for i, own in enumerate(told()["models"]) if own["id"] == model)
    file, at = load_file(TENSORS), own["layers"].index(layer)
    cos, sin = (torch.cat([file[f"{index}/{name}"]] * 2, -1) for name in ("cos", "sin"))
    rope = Rope.of(cos, sin, cos.shape[-1])
    names = ("codes", "step", "mean")
    keys, values, queries = (
        restored({name: file[f"{index}/{part}/{name}"][at : at + 1, head : head + 1] for name in names})
        for part in ("keys", "values", "queries")
    )
    queries = rope.rotate(queries, keys.shape[-2] - queries.shape[-2])
    group = LayerGroup([layer], torch.device("cpu"), rope.rotate(keys, 0), values, queries)
    return FitSource([group], rope, ModelRef(model, own["weights"], own["interleaved"])), queries


def array(text: str, dtype: type = np.float32) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype).copy())


def codes_of(tensors: dict[str, Tensor], method: str, bits: int, count: int) -> Tensor:
    """Codes of a block as bytes."""
    if method == "q8_0":
        return tensors["codes"].view(torch.uint8)
    return unpack_planes(tensors["codes"], 4) if method == "q4_0" else unpack(tensors["codes"], bits, count)


def same(state: dict, found: dict, kind: str) -> bool:
    """Compares a tensor of the page with the program's; whether all of it was equal to the last bit."""
    lane, part = found["lane"], found[kind]
    source, _ = head_of(state["model"], state["layer"], state["head"])
    x = source.groups[0].keys if kind == "keys" else source.groups[0].values
    if lane.get("tensors", kind) != kind:
        assert torch.equal(array(part["read"]).view_as(x), x.half().float())
        return True
    method = make(lane["method"], **lane["knobs"])
    how = Transforms(**{name: lane[name] for name in ("center", "fold", "rotate") if name in lane})
    fit = MethodFit.of(method, how, (state["layer"],), source)
    codec = fit.fitted[0].key if kind == "keys" else fit.fitted[0].value
    center, fold = (fit.centers[0], fit.folds[0]) if kind == "keys" else (None, None)
    stream = Stream.of_prompt(x, method.windows()[kind == "values"], codec, center, fit.rotations[0], fold=fold)
    assert sum(part["bytes"].values()) == sum(stream.nbytes().values()), (state, kind, part["bytes"], stream.nbytes())
    assert (part["start"], part["start"] + part["packed"]) == stream.packed_range
    seen, own = array(part["seen"]).view_as(x), stream._turned(x, 0)
    if (turn := getattr(codec, "turn", None)) is not None:
        own, codec = turn.turned(own), replace(codec, turn=None)
    exact = torch.equal(seen, own)
    # what differs was summed in another order, or is a constant in fp16 whose float32 lay next to the middle of two:
    # the mean's sum and torch's square root are off by a last bit at times
    constants = how.center != "none" or how.fold != "none"
    assert exact or constants or how.rotate != "none" or turn is not None, (state, kind)
    most = float(x.abs().max())
    torch.testing.assert_close(seen, own, rtol=1e-3 if constants else 1e-5, atol=most * (5e-4 if constants else 2e-6))
    if "norms" in getattr(codec, "shared", {}):
        norms, plain = array(part["norms"]).view(1, 1, 1, -1), key_norms(seen, "exact", torch.float16)
        torch.testing.assert_close(norms, plain.float(), rtol=2**-10, atol=0)
        exact, codec = exact and torch.equal(norms, plain.float()), replace(codec, shared={"norms": norms.half()})
    block = codec.encode_prompt(seen[..., part["start"] : part["start"] + part["packed"], :], part["start"])
    tensors = block.tensors
    scales = tensors["scales"]
    bits = getattr(codec, "bits_per_code", 8)
    count = block.tokens if getattr(codec, "axis", "") == "tokens" else x.shape[-1]
    assert torch.equal(array(part["codes"], np.uint8), codes_of(tensors, lane["method"], bits, count).flatten())
    assert torch.equal(array(part["scales"]), scales.flatten().float())
    zeros = array(part["zeros"])
    if "mask" in tensors:
        symmetric = unpack(tensors["mask"], 1, scales.numel()).bool().flatten()
        assert torch.equal(zeros.isnan(), symmetric)
        words = tensors["words"][..., :4].contiguous().view(torch.float32).flatten()
        assert torch.equal(zeros[~symmetric], words[~symmetric])
    elif "zeros" in tensors:
        assert torch.equal(zeros, tensors["zeros"].flatten().float())
    read = array(part["read"]).view_as(x)
    if exact:
        torch.testing.assert_close(read, stream.decode(), rtol=1e-5, atol=2e-6 * most)
    return exact and torch.equal(read, stream.decode())


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("lab") / "lab.html"
    file.write_text(lab(), encoding="utf-8")
    return file.as_uri()


@pytest.fixture
def opened(browser, address):
    """Opens the page with an address's end, offline; whatever it complains about fails the test."""
    complaints, contexts = [], []

    def open_lab(end: str = "", scheme: str = "light", width: int = 1280):
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith("file:") or complaints.append(request.url))
        page.goto(f"{address}{end}")
        page.wait_for_selector("#answer:not(:empty)")
        return page

    yield open_lab
    for context in contexts:
        context.close()
    assert complaints == []


def test_codes_and_scales_are_the_programs_bit_for_bit(opened):
    page = opened()
    exact = [
        same(state, found, kind)
        for state in STATES
        for found in [page.evaluate(STORED, state)]
        for kind in ("keys", "values")
    ]
    # nothing but a rotation's sums and a mean's rounding may keep a state from being equal from end to end
    assert sum(exact) >= len(exact) * 0.7


def test_what_attention_reads_is_what_float64_says(opened):
    page = opened()
    for state in ({**STATES[1], "keys": 3}, {**HEADS[1], "format": "q4_0", "rotate": "hadamard"}):
        found = page.evaluate(STORED, state)
        source, queries = head_of(state["model"], state["layer"], state["head"])
        method = make(found["lane"]["method"], **found["lane"]["knobs"])
        rounding = method.query_rounding(source.model)
        asked = queries if rounding is None else rounding(queries[0])[None]
        keys, read = source.groups[0].keys, array(found["keys"]["read"]).view_as(source.groups[0].keys)
        moved = (weights(asked, read) - weights(queries, keys)).abs().sum(-1).mean() / 2
        assert found["moved"] == pytest.approx(float(moved), rel=1e-4)
        off = (asked.double() @ read.double().mT - queries.double() @ keys.double().mT) / 8
        later = torch.arange(keys.shape[-2]) > torch.arange(keys.shape[-2] - 32, keys.shape[-2])[:, None]
        assert found["score"] == pytest.approx(float(off[0, 0][~later].square().mean().sqrt()), rel=1e-4)


def test_every_story_says_what_it_shows_and_its_lane_can_be_run(opened):
    page = opened()
    for button in page.locator("[data-step]").all():
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        story, step = map(int, button.get_attribute("data-step").split("."))
        assert page.inner_text("#story") == told()["stories"][story]["steps"][step]["text"]
        assert page.locator("[data-step][aria-pressed=true]").count() == 1
        moved = page.inner_text("#moved")
        assert page.inner_text("#answer").startswith(f"{moved} of the attention goes to other tokens")
        assert parse_spec({"prompt": "x", "lanes": [json.loads(page.inner_text("#lane"))]}).lanes


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_it_can_be_used_by_keyboard_and_its_address_restores_it(opened, scheme, width):
    page = opened("", scheme, width)
    bits = page.locator("#keys")
    before = page.inner_text("#moved")
    bits.press("ArrowLeft")
    assert bits.get_attribute("aria-valuetext") == "3" and page.inner_text("#moved") != before
    page.locator("[name=center][value=mean]").press("Space")
    page.locator("#map-computed").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "Token 1 " in page.inner_text("#pointed") and "channel 1:" in page.inner_text("#pointed")
    reads = page.inner_text("#reads")
    page.locator("#reader").press("Home")
    assert page.inner_text("#reads") != reads and page.locator("#words .reader").count() == 1
    page.wait_for_url("**reader=0*")
    hash, shown = page.evaluate("location.hash"), page.inner_text(".numbers")
    assert opened(hash, scheme, width).inner_text(".numbers") == shown
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    serious = [(v["id"], v["nodes"][0]["html"]) for v in Axe().run(page).response["violations"]]
    assert serious == []


def test_an_address_that_says_nonsense_opens_and_a_frame_has_no_heading(opened, browser, address, tmp_path):
    plain = opened().inner_text(".numbers")
    assert opened("#model=none&keys=7&layer=99&head=-1&format=%3Cb%3E&axis=token").inner_text("#answer") != ""
    page = opened("#keys=x&nothing=1")
    assert page.inner_text(".numbers") == plain and page.locator("header h1").is_visible()
    (tmp_path / "site.html").write_text(f'<iframe src="{address}" style="width:100%;height:700px"></iframe>')
    context = browser.new_context()
    outer = context.new_page()
    outer.goto((tmp_path / "site.html").as_uri())
    inside = outer.frames[1]
    inside.wait_for_selector("#answer:not(:empty)")
    assert not inside.locator("header h1").is_visible() and inside.locator("#model").is_visible()
    context.close()
