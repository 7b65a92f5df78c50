"""Stores by themselves: what they refuse in one line, and copies, which are stores of their own."""

import copy
import pickle

import pytest
import torch
from kvq_kernels import Grid, KernelError, Layout, Store, decode_attention, join, quantize_pack, unpack_dequantize
from kvq_kernels.blocks import BlockForm

KEYS, VALUES = Layout(Grid(2), "tokens", 2, 0, 32), Layout(Grid(2), "channels", 2, 8, 1)
X = torch.randn(1, 2, 400, 64, generator=torch.Generator().manual_seed(0))


def filled(tokens=200, layout=VALUES, side="values"):
    store = Store.empty(X, layout, side, path="torch")
    store.fill(X[..., :100, :])
    store.extend(X[..., 100:tokens, :])
    return store


def swapped():
    return decode_attention(X[..., :1, :].half(), filled(), filled(layout=KEYS, side="keys"), 0.1)


MISUSED = {
    "swapped": (swapped, "A store of keys comes first"),
    "both keys": (lambda: decode_attention(X[..., :1, :], *[filled(layout=KEYS, side="keys")] * 2, 0.1), "of values"),
    "axis": (
        lambda: Store.empty(X, Layout(Grid(2), "token", 0, 0, 32), "keys"),
        "'token': allowed are channels, tokens",
    ),
    "axis of groups": (lambda: quantize_pack(X, Grid(2), "token"), "'token': allowed are channels, tokens"),
    "axis of packed": (lambda: unpack_dequantize(quantize_pack(X, Grid(2), "tokens"), Grid(2), "x", 400), "axis = 'x'"),
    "side": (lambda: Store.empty(X, VALUES, "key"), "side = 'key': allowed are keys, values"),
    "step": (lambda: Store.empty(X, VALUES._replace(step=0), "values"), "step = 0: .*step is 1 or more"),
    "recent": (lambda: Store.empty(X, VALUES._replace(recent=-1), "values"), "recent = -1, .*are 0 or more"),
    "sinks": (lambda: Store.empty(X, VALUES._replace(sinks=-1), "values"), "sinks = -1, .*are 0 or more"),
    "heads of a prompt": (lambda: Store.empty(X, VALUES, "values").fill(X[:, :1]), r"takes \(1, 2, tokens, 64\)"),
    "heads of a token": (lambda: filled().append(X[:, :1, :1]), r"\(1, 1, 1, 64\) are no tokens of this store"),
    "rows of a token": (lambda: filled().append(X[0, :, :1]), r"\(2, 1, 64\) are no tokens of this store"),
}


@pytest.mark.parametrize("case", list(MISUSED))
def test_misuse_is_refused_in_one_line(case):
    call, words = MISUSED[case]
    with pytest.raises(KernelError, match=words) as refused:
        call()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("count", ["tokens", "mark", "rewind", "append", "extend", "pack_due", "dense", "groups"])
def test_the_memory_of_several_rows_sends_who_counts_to_these(count):
    rows = [filled(n) for n in (150, 290)]
    before, whole = rows[0].nbytes + rows[1].nbytes, join(rows)
    given = {"rewind": (rows[0].mark(),), "append": (X[..., :1, :],), "extend": (X[..., :1, :],)}
    with pytest.raises(KernelError, match="the memory of 2 rows, which count for themselves"):
        found = getattr(whole, count)
        found(*given.get(count, ()))
    assert whole.nbytes == before and whole.lengths[:, 2].tolist() == [148, 148, 288, 288]


@pytest.mark.slow
@pytest.mark.parametrize("way", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copy_finds_its_own_records_and_shares_none(way):
    rows = [filled(n) for n in (290, 400)]
    whole = join(rows)
    for row in rows:  # into a segment of their own
        row.extend(X[..., :300, :])
    whole.scratch[1,] = (torch.zeros(1),)
    other = way(whole)
    assert len(other.pool.segments) > 1 and not other.scratch and whole.scratch
    begin, size = other.pool.records.data_ptr(), other.form.nbytes * other.pool.matrices
    blocks = [part[i].data_ptr() for part in other.pool.segments for i in range(len(part))]
    assert (other.pool.table[: len(blocks)] * 16 + begin).tolist() == blocks and size % 16 == 0
    before = [row.dense() for row in rows]
    for at, row in enumerate(other.rows):
        assert row.pool.pool is other.pool and torch.equal(row.dense(), before[at])
        row.extend(X[..., :40, :])
        assert row.tokens == rows[at].tokens + 40
    assert other.lengths[:, 2].tolist() == [628, 628, 738, 738], "what a row enters is in the memory of the whole"
    assert all(torch.equal(row.dense(), held) for row, held in zip(rows, before, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "side"), [(VALUES, "values"), (KEYS, "keys")])
@pytest.mark.parametrize("tokens", [200, 265, 388])
def test_cutting_back_reads_one_block_and_leaves_every_byte_as_it_was(layout, side, tokens, monkeypatch):
    store = filled(tokens, layout, side)
    mark, held = store.mark(), torch.cat(store.pool.segments)
    store.extend(X)
    read, real = [], BlockForm.read
    monkeypatch.setattr(BlockForm, "read", lambda form, records, n: read.append(len(records)) or real(form, records, n))
    store.rewind(mark)
    assert read in ([], [1])
    found = torch.cat(store.pool.segments)
    assert torch.equal(found[: len(held)], held) and not found[len(held) :].any()
