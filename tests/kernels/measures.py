"""How far a result may be from float64, and inputs with what breaks kernels in them."""

import torch
from torch import Tensor

# Relative rms error allowed: sums of float32 products, and products of numbers rounded to float16. The interpreter
# truncates where it stores bfloat16, hence one whole unit in the last place.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 8e-3}


def assert_close(result: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """Relative rms error against a float64 result."""
    assert result.shape == exact.shape
    assert torch.isfinite(result).all(), "an output was not written"
    error = (result.double() - exact).norm() / exact.norm().clamp_min(1e-30)
    assert error <= TOLERANCE[dtype], f"relative error {error:.2e}"


def keys_with_traps(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random (..., tokens, channels) with an outlier channel, an offset one, a constant one and a token of zeros."""
    x = torch.randn(*shape)
    x[..., 1] *= 20
    x[..., 2] += 5
    x[..., 3] = 0.5
    x[..., 0, :] = 0
    return x.to(dtype).to(device)
