"""The id and files of the sample run, and how two runs are compared."""

import torch

ID = "0123456789abcdef"
FILES = ["record.json", "arrays.safetensors", "manifest.json"]


def same(one, other):
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    for name, tensor in one[1].items():
        assert other[1][name].dtype == tensor.dtype and torch.equal(other[1][name], tensor)


def one_line(error) -> str:
    assert "\n" not in str(error) and len(str(error)) < 300
    return str(error)
