"""Stores by themselves: copies of them are stores of their own."""

import copy
import pickle

import pytest
import torch
from kvq_kernels import Grid, Layout, Store, join

KEYS, VALUES = Layout(Grid(2), "tokens", 2, 0, 32), Layout(Grid(2), "channels", 2, 8, 1)
X = torch.randn(1, 2, 400, 64, generator=torch.Generator().manual_seed(0))


def filled(tokens=200, layout=VALUES, side="values"):
    store = Store.empty(X, layout, side, path="torch")
    store.fill(X[..., :100, :])
    store.extend(X[..., 100:tokens, :])
    return store


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
