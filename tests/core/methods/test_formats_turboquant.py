"""TurboQuant: its levels, its keys' norms and rotation, and the layers it leaves alone."""

import numpy as np
import torch

from kvq_core.methods import make
from kvq_core.methods.formats.turboquant import centroids
from kvq_core.spec import parse_lane
from tests.support.engine_runs import run_engine
from tests.support.format_blocks import butterflies, normal, read, row
from tests.support.tiny_models import prompt_ids, tiny


def test_turboquant_s_levels_are_the_solver_s() -> None:
    """vLLM's centroids.py as printed, and not the exact Lloyd-Max levels, which lie .001 further out."""
    printed = {2: [0.4526, 1.5096], 3: [0.2450, 0.7556, 1.3432, 2.1503]}
    printed[4] = [0.1284, 0.3881, 0.6569, 0.9424, 1.2563, 1.6179, 2.0684, 2.7309]
    for bits, levels in printed.items():
        found = centroids(bits)
        np.testing.assert_allclose(found[len(found) // 2 :], levels, atol=1e-4)
        np.testing.assert_allclose(found, [-level for level in found[::-1]], atol=1e-9)


def test_turboquant_s_key_is_a_norm_and_the_nearest_levels_of_its_direction() -> None:
    x = normal(64, 200).double().numpy() * np.linspace(0.2, 4, 64)
    levels = np.array(centroids(4)) / 8
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    turned = butterflies((x / (norms + 1e-8)).astype(np.float32)) / 8
    chosen = levels[np.abs(turned[..., None] - levels).argmin(-1)]
    chosen = chosen / np.linalg.norm(chosen, axis=1, keepdims=True)
    expected = butterflies(chosen.astype(np.float32)) / 8 * norms.astype(np.float16).astype(np.float32)
    found = read("turboquant", torch.from_numpy(x).float(), preset="4bit_nc")[0].numpy()
    close = np.abs(found - expected).max(1) < 1e-3 * norms[:, 0]
    assert close.mean() > 0.99  # a coordinate on the edge of two levels may go either way
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), norms[:, 0], rtol=1e-3)  # what "nc" is for
    paper = read("turboquant", torch.from_numpy(x).float(), preset="paper")[0].norm(dim=1).numpy()
    assert 0.01 < np.abs(paper / norms[:, 0] - 1).mean() < 0.1


def test_turboquant_s_values_are_not_rotated() -> None:
    x = row(15.0, 1.4, 0.6, 0.0)
    torch.testing.assert_close(read("turboquant", x)[1], row(15.0, 1.0, 1.0, 0.0), rtol=0, atol=0)
    assert (read("turboquant", row(0.0) + 3)[1] == 3).all() and (read("turboquant", row(0.0))[0] == 0).all()


def test_turboquant_keeps_the_outer_layers_in_fp16_and_counts_them() -> None:
    lanes = [
        parse_lane({"method": "turboquant", "label": "own", "knobs": {"boundary_layers": 1}}),
        parse_lane({"method": "turboquant", "label": "all", "knobs": {"boundary_layers": 0}}),
    ]
    outcome = run_engine(tiny("llama", torch.float32), prompt_ids(40), lanes, 3, audit=True, ignore_eos=True)
    layers = tiny("llama").shape.layers
    quantized = [set(state.cache.quantized_layers) for state in outcome.decode.states if state.cache]
    assert quantized == [set(range(1, layers - 1)), set(range(layers))]
    assert make("turboquant", preset="paper").kept_layers(30) == frozenset()
    assert make("turboquant").kept_layers(30) == {0, 1, 28, 29}
