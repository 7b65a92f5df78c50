"""optimum-quanto without its compiler: it unpacks codes by C++ that it compiles when it is first asked."""

from types import SimpleNamespace

import pytest
import torch


def unpack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """(rows / codes a byte, columns) as (rows, columns): what its C++ gives."""
    return torch.cat([codes // 2**shift % 2**bits for shift in range(0, 8, bits)])


def compile_nothing(patch: pytest.MonkeyPatch) -> None:
    """A compile takes a minute of every fresh environment."""
    from optimum.quanto import library

    patch.setattr(library.extensions.cpp.ext, "_lib", SimpleNamespace(unpack=unpack))
