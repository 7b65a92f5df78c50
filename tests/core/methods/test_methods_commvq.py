"""CommVQ: the golden arrays, codebooks worked out by hand, the commuted form of scores, and what a lane stores."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from kvq_kernels import rope_codebook as rc
from kvq_kernels.commuted import commutes
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import kvq_core
from kvq_core.codebooks.encoder import OPTIONS, Encoder
from kvq_core.errors import MethodError, SpecError
from kvq_core.methods import ModelShape, Prompt, make
from kvq_core.methods.commvq.method import KeyCodec, ValueCodec
from kvq_core.models.rope import rotate_half

FIXTURES = Path(__file__).parents[2] / "fixtures"


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tables(tokens: int, pairs: int) -> tuple[Tensor, Tensor]:
    angles = torch.arange(tokens)[:, None] * 1e4 ** (-torch.arange(pairs) / pairs)
    return angles.cos(), angles.sin()


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    with np.load(FIXTURES / "commvq_key_64lv_R3.npz") as arrays:
        return {key: torch.from_numpy(np.ascontiguousarray(arrays[key])) for key in arrays.files}


def golden_codec(golden: dict[str, Tensor], metadata: torch.dtype = torch.float32) -> KeyCodec:
    # (head, stage, pair, level, 2) -> (layers, heads, groups, stages, levels, pairs, 2)
    return KeyCodec(golden["theta"].transpose(2, 3)[None, :, None], metadata)


def stored_codes(codec: KeyCodec, x: Tensor) -> Tensor:
    unit = x / x.square().sum((1, 3)).sqrt()[:, None, :, None]
    return rc.encode_pairs(rc.split_pairs(unit, codec.theta.shape[-2]), codec.theta.float())


def test_the_golden_codes(golden):
    codes = stored_codes(golden_codec(golden), golden["k_pre"].float())[0, :, 0].int()  # (heads, tokens, stages, 2)
    mine = (codes[..., 0] * 64 + codes[..., 1]).permute(2, 0, 1)
    assert (mine != golden["codes"]).double().mean() < 1e-3


def test_the_golden_decode(golden):
    codec = golden_codec(golden)
    block = codec.encode(golden["k_pre"].float(), 0)
    torch.testing.assert_close(block.tensors["prescale"], golden["prescale"][..., 0], rtol=1e-5, atol=0)
    torch.testing.assert_close(codec.decode(block), golden["deq"], rtol=0, atol=1e-4)
    assert block.nbytes["codes"] * 8 == 2 * 96 * 3 * 12  # 12 bits a stage, head and token, bit-packed
    assert codec.bits(block).item() == pytest.approx(3 * 12 / 128 + 32 / 256)


HAND = torch.tensor([[1.0, 0.0], [0.0, 2.0]])  # two levels of one pair: (x, y) = (1, 0) and (0, 2)


@pytest.mark.parametrize("a, b, centre", [(0, 0, (1, 1)), (0, 1, (-1, 0)), (1, 0, (0, 3)), (1, 1, (-2, 2))])
def test_a_codebook_by_hand(a, b, centre):
    """Centre (a, b) of a pair is (x_a - y_b, y_a + x_b), times the prescale, at channels i and i + head_dim / 2."""
    theta = HAND.view(1, 1, 1, 1, 2, 1, 2)
    codes = torch.tensor([a, b], dtype=torch.uint8).view(1, 1, 1, 1, 1, 2)
    assert rc.decode_pairs(codes, theta).flatten().tolist() == list(centre)
    x = torch.tensor(centre).float().view(1, 1, 1, 2)
    scaled = KeyCodec(theta / x.norm(), torch.float32)  # a centre of norm 1 is met exactly
    block = scaled.encode(5 * x, 0)
    assert block.tensors["codes"].item() == a + 2 * b  # one bit a level, first level lowest
    torch.testing.assert_close(scaled.decode(block), 5 * x)


def dense_t(levels: int) -> Tensor:
    """The paper's T (Eqs. 27 to 30): centres of one pair are T phi, with phi = x0 y0 x1 y1 ..."""
    t = torch.zeros(2 * levels**2, 2 * levels)
    for a in range(levels):
        for b in range(levels):
            row = 2 * (a * levels + b)
            t[row, 2 * a] += 1
            t[row, 2 * b + 1] -= 1
            t[row + 1, 2 * a + 1] += 1
            t[row + 1, 2 * b] += 1
    return t


def test_centres_equal_the_dense_matrix():
    theta = random(4, 5, 2)  # (levels, pairs, 2)
    first, second = rc.code_vectors(theta)
    centres = (first[:, None] + second[None]).flatten(0, 1)  # (16, 2 * pairs)
    dense = dense_t(4) @ theta.transpose(0, 1).flatten(1).T  # (32, pairs)
    torch.testing.assert_close(centres, torch.cat([dense[0::2], dense[1::2]], -1))
    torch.testing.assert_close(rc.half_norms(torch.stack([first, second])).flatten(), centres.square().sum(-1) / 2)


@pytest.mark.parametrize("levels", [4, 16])
def test_nearest_codes_are_the_nearest(levels):
    vectors, z = rc.code_vectors(random(3, levels, 6, 2)), random(3, 200, 12, seed=1)
    codes, squared = rc.nearest_codes(z, vectors)
    centres = (vectors[:, 0, :, None] + vectors[:, 1, None]).flatten(1, 2)
    distance = torch.cdist(z.double(), centres.double())
    torch.testing.assert_close(squared.sqrt().double(), distance.min(-1).values, rtol=1e-4, atol=1e-4)
    index = codes[..., 0].long() * levels + codes[..., 1]
    assert (index != distance.argmin(-1)).double().mean() < 1e-3
    torch.testing.assert_close(rc.stage_centres(codes, vectors), centres.gather(1, index[..., None].expand(-1, -1, 12)))


@pytest.mark.parametrize("pairs", [2, 4, 8])
def test_groups_hold_rope_pairs(pairs):
    x = torch.arange(16.0).expand(2, 3, 5, 16)
    groups = rc.split_pairs(x, pairs)
    assert groups.shape == (2, 3, 8 // pairs, 5, 2 * pairs)
    assert groups[0, 0, 0, 0].tolist() == [*range(pairs), *range(8, 8 + pairs)]  # channels i and i + 8
    torch.testing.assert_close(rc.join_pairs(groups), x)


@pytest.mark.parametrize("pairs, levels, stages", [(16, 8, 5), (8, 64, 3), (4, 16, 2)])
def test_commuted_scores_equal_decoding(pairs, levels, stages):
    """Eq. 19 against decoding, rotating and multiplying, for every group of a head of 32 channels."""
    tokens = 50
    theta = random(16 // pairs, stages, levels, pairs, 2) / stages
    codes = torch.randint(0, levels, (16 // pairs, tokens, stages, 2), generator=torch.Generator().manual_seed(3))
    query = random(32, seed=2)
    cos, sin = tables(tokens, 16)
    keys = rc.join_pairs(rc.decode_pairs(codes, theta))  # (tokens, 32)
    both = (torch.cat([t, t], -1)[None] for t in (cos, sin))
    direct = rotate_half(keys[None, None], keys[None, None], *both)[1][0, 0] @ query
    parts = rc.split_pairs(query[None], pairs)[:, 0]  # (groups, 2 * pairs)
    group_cos, group_sin = (t.unflatten(-1, (-1, pairs)).transpose(0, 1) for t in (cos, sin))
    commuted = sum(
        rc.commuted_scores(rc.score_tables(q, t), c, gc, gs)
        for q, t, c, gc, gs in zip(parts, theta, codes, group_cos, group_sin, strict=True)
    )
    torch.testing.assert_close(commuted, direct, rtol=0, atol=1e-4)


def key_codec(layers: int, heads: int, head_dim: int, pairs: int, levels: int, stages: int) -> KeyCodec:
    theta = random(layers, heads, head_dim // 2 // pairs, stages, levels, pairs, 2).half()
    return KeyCodec(theta * (2 * head_dim) ** -0.5)


class Counted(TorchDispatchMode):
    """Products of two tensors, and numbers that summing rows adds up."""

    products = added = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.mul and out.is_floating_point():
            self.products += out.numel()
        elif func.overloadpacket is torch.ops.aten.bmm:
            self.products += out.numel() * args[0].shape[-1]
        elif func.overloadpacket is torch.ops.aten._embedding_bag_forward_only:
            self.added += args[1].numel() * args[0].shape[-1]
        return out


@pytest.mark.parametrize(("queries", "tokens", "stages", "levels"), [(1, 300, 8, 16), (3, 300, 8, 16), (4, 40, 3, 64)])
def test_what_scores_take_is_what_is_computed(queries, tokens, stages, levels):
    """A KV head's keys summed up, turned and multiplied with its queries, and the same scores from tables of each."""
    theta, q, (cos, sin) = random(1, stages, levels, 8, 2), random(queries, 1, 16, seed=1), tables(tokens, 8)
    codes = torch.randint(levels, (1, tokens, stages, 2), generator=torch.Generator().manual_seed(2))
    with Counted() as summed:
        x, y = rc.decode_pairs(codes, theta).chunk(2, -1)
        keys = torch.cat([x * cos - y * sin, y * cos + x * sin], -1)
        scores = q.transpose(0, 1) @ keys.transpose(-1, -2)
    with Counted() as commuted:
        again = rc.commuted_scores(rc.score_tables(q[:, 0], theta[0]), codes.expand(queries, -1, -1, -1), cos, sin)
    torch.testing.assert_close(again[None], scores, rtol=1e-4, atol=1e-4)
    works = (rc.scores_work(queries, tokens, stages, levels, which) for which in (False, True))
    for work, found in zip(works, (summed, commuted), strict=True):
        assert (found.added, found.products) == (8 * work.additions, 8 * work.multiplications)


@pytest.mark.parametrize(("stages", "levels"), [(8, 16), (16, 16), (11, 64), (21, 64), (2, 2)])
def test_tables_take_less_where_one_query_head_has_a_kv_head_and_many_keys(stages, levels):
    """CommVQ's settings, and two stages, over the longest context there is: for more query heads one sum takes less."""
    entries = stages * levels
    assert [commutes(1, tokens, stages, levels) for tokens in (1, 2 * entries, 2 * entries + 1)] == [False, False, True]
    assert not any(commutes(n, tokens, stages, levels) for n in range(2, 17) for tokens in (64, 4096, 1 << 20))


@pytest.mark.parametrize(
    "levels, pairs, stages, bits", [(16, 32, 8, 1.0), (16, 32, 16, 2.0), (64, 32, 5, 30 / 32), (8, 16, 8, 1.5)]
)
def test_key_bits(levels, pairs, stages, bits):
    """R log2(L) / g bits an element, and 16 bits of prescale a token over all 3 * 64 elements."""
    codec = key_codec(2, 3, 64, pairs, levels, stages)
    x = random(2, 3, 128, 64)
    block = codec.encode(x, 0)
    assert codec.bits(block).item() == pytest.approx(bits + 16 / (3 * 64))
    assert sum(block.nbytes.values()) * 8 == (bits + 16 / 192) * x.numel()
    direct = rc.join_pairs(rc.decode_pairs(stored_codes(codec, x), codec.theta))
    close = (codec.decode(block) / x.square().sum((1, 3)).sqrt()[:, None, :, None] - direct).abs() < 1e-3
    assert close.double().mean() > 0.99  # the prescale is rounded to float16, which moves a code at a tie


def value_codec(layers: int, heads: int, head_dim: int, bits: int) -> ValueCodec:
    d = heads * head_dim
    sizes = {"w1": (d, 8), "b1": (8,), "w2": (8, 2 * bits * d), "b2": (2 * bits * d,), "codebook": (bits * d, d)}
    parts = {name: random(layers, *size, seed=len(name)) for name, size in sizes.items()}
    return ValueCodec(Encoder(scale=torch.rand(layers, d) + 0.5, **parts), heads)


@pytest.mark.parametrize("bits", [1, 2])
def test_value_bits(bits):
    codec = value_codec(2, 3, 16, bits)
    block = codec.encode(random(2, 3, 128, 16), 0)
    assert codec.bits(block).item() == pytest.approx(bits + 16 / 48)
    assert block.nbytes == {"codes": 2 * 128 * 48 * bits // 8, "prescale": 2 * 128 * 2}


def test_value_digits_choose_the_largest_logit():
    codec = value_codec(1, 2, 4, 1)
    x = random(1, 2, 10, 4)
    inputs, _ = codec.encoder.normalize(x.transpose(1, 2).flatten(2))
    logits = codec.encoder.logits(inputs)
    digits = codec.encoder.digits(logits)
    for token in range(10):
        expected = [digit for group in logits[0, token] for digit in OPTIONS[int(group.argmax())]]
        assert digits[0, token].tolist() == expected


def test_decoded_values_have_the_stored_norm_and_direction():
    codec = value_codec(2, 3, 16, 2)
    block = codec.encode(random(2, 3, 20, 16), 0)
    decoded = codec.decode(block).transpose(1, 2).flatten(2) / codec.encoder.scale[:, None]
    torch.testing.assert_close(decoded.norm(dim=-1), block.tensors["prescale"].float(), rtol=1e-4, atol=1e-4)
    digits = codec.encoder.digits(
        codec.encoder.logits(codec.encoder.normalize(random(2, 3, 20, 16).transpose(1, 2).flatten(2))[0])
    )
    raw = digits.float() @ codec.encoder.codebook
    cosine = torch.nn.functional.cosine_similarity(decoded, raw, dim=-1)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))


def test_tokens_of_zeros_stay_finite():
    keys, values = key_codec(1, 2, 16, 8, 4, 2), value_codec(1, 2, 16, 1)
    for codec in (keys, values):
        decoded = codec.decode(codec.encode(torch.zeros(1, 2, 3, 16), 0))
        assert decoded.abs().max() == 0


def test_windows_stages_and_summary():
    method = make("commvq", bits=2, window=64)
    assert [(w.sink, w.recent, w.step) for w in method.windows()] == [(0, 0, 64)] * 2
    assert make("commvq").windows()[0].packed(300) == 256
    assert method.key_space == "pre"
    assert "K2 V2" in method.summary()
    assert make("commvq", key_bits=2).width("value") == 1


def test_impossible_settings_say_so():
    with pytest.raises(SpecError, match="bits = 3 is not allowed; allowed: 1, 2"):
        make("commvq", bits=3)
    with pytest.raises(SpecError, match="levels"):
        make("commvq", levels=12)
    with pytest.raises(SpecError, match="codebooks"):
        make("commvq", codebooks="../elsewhere")
    reason = make("commvq", pairs_per_group=5).why_not(ModelShape(1, 4, 2, 64, 512))
    assert reason is not None and "5 does not divide the 32" in reason


def test_tensors_without_a_model_need_a_named_set():
    keys, cos = torch.zeros(2, 4, 8), torch.ones(4, 8)
    with pytest.raises(MethodError, match="codebooks = NAME"):
        kvq_core.roundtrip(make("commvq"), keys, keys, rope=(cos, cos))
    with pytest.raises(MethodError, match="codebooks train --model ID --bits 1 --name mine"):
        kvq_core.roundtrip(make("commvq", codebooks="mine"), keys, keys, rope=(cos, cos))


def test_a_model_without_codebooks_names_the_command(tmp_path, monkeypatch):
    from kvq_core.methods import ModelRef

    monkeypatch.setenv("KVQ_HOME", str(tmp_path))
    x = torch.zeros(1, 2, 4, 8)
    prompt = Prompt(x, x, None, model=ModelRef("some/model", "0" * 16), layers=(0,))
    with pytest.raises(MethodError, match="python -m kvq_core codebooks train --model some/model --bits 2 --levels 64"):
        make("commvq", bits=2, levels=64).fit(prompt)
    assert make("commvq").data_hash(ModelRef("some/model", "0" * 16)) is None


@pytest.mark.slow
def test_both_forms_are_measured_as_make_bench_runs_it(tmp_path):
    root, out = Path(__file__).parents[3], tmp_path / "scores.json"
    command = [sys.executable, "benchmarks/commvq_scores.py", "--tokens", "64", "--out", str(out)]
    subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": "."}, check=True, capture_output=True)
    rows = json.loads(out.read_text())
    assert [(row["levels"], row["stages"]) for row in rows] == [(16, 8), (16, 16), (64, 11)]
    for row in rows:
        assert row["difference"] < 1e-4 and row["multiplications"]["commuted"] < row["multiplications"]["naive"]
