"""Spectra, angles and latent channels against direct decompositions."""

import pytest
import torch
from scipy.linalg import subspace_angles

from kvq_core.capture.distribution import QUANTILES, KeyBasis
from kvq_core.capture.spectra import deviations, principal_angles, query_directions, spectra, thin
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.methods.prompt import query_gram, stack_queries
from tests.support.tiny_models import prompt_ids, tiny


def test_spectra_equal_a_direct_svd() -> None:
    model, ids = tiny("qwen2"), prompt_ids(60)
    prefill = SharedPrefill(model, ids)
    list(prefill.run())
    group, rope = prefill.groups[0], model.rope(60)
    found = spectra(group, rope)
    tensors = {"key_post": group.keys, "key_pre": rope.unrotate(group.keys, 0), "value": group.values}
    for name, x in tensors.items():
        mean = x.double().mean(-2, keepdim=True)
        direct = torch.linalg.svdvals(x.double() - mean)
        torch.testing.assert_close(found[f"centred/{name}"].double(), direct, rtol=1e-3, atol=1e-4)
        concat = torch.linalg.svdvals((x.double() - mean).transpose(1, 2).flatten(2))
        torch.testing.assert_close(
            found[f"centred/{name}_concat"][:, :60].double(), concat[:, :60], rtol=1e-3, atol=1e-3
        )
        whole = x.double().square().sum((-1, -2))
        parts = found[f"centred/{name}"].double().square().sum(-1) + found[f"mean/{name}"].double().square()
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            found[f"mean/{name}"].double(), 60**0.5 * mean.norm(dim=-1)[..., 0], rtol=1e-5, atol=1e-6
        )
        for layer, head in ((0, 1), (2, 0)):
            covariance = torch.cov(x[layer, head].double().T, correction=0)
            expected = torch.linalg.eigvalsh(covariance).flip(-1)
            torch.testing.assert_close(found[f"gaussian/{name}"][layer, head].double(), expected, rtol=1e-3, atol=1e-6)


def test_keys_before_rope_are_the_projections() -> None:
    """Rotating back gives exactly what the key projection put out (Llama has no norm in between)."""
    model, ids = tiny("llama"), prompt_ids(20)
    outputs = {}
    hook = model.model.model.layers[1].self_attn.k_proj.register_forward_hook(lambda m, i, o: outputs.update(k=o))
    prefill = SharedPrefill(model, ids)
    list(prefill.run())
    hook.remove()
    projected = outputs["k"][0].unflatten(-1, (2, 32)).transpose(0, 1)
    recovered = model.rope(20).unrotate(prefill.groups[0].keys[1:2], 0)[0]
    torch.testing.assert_close(recovered, projected, rtol=1e-5, atol=1e-5)


def test_deviation_is_the_distance_from_the_subspace() -> None:
    queries = torch.randn(2, 4, 50, 16) * torch.linspace(4, 0.2, 16)
    stacked = stack_queries(queries, 2)
    [found] = deviations(stacked, query_directions(query_gram(queries, 2)))
    q = stacked[1, 0].double()
    _, _, vh = torch.linalg.svd(q, full_matrices=False)
    unit = q / q.norm(dim=-1, keepdim=True)
    for rank in (0, 1, 5, 15):
        left = unit - unit @ vh[:rank].T @ vh[:rank]
        assert found[1, 0, rank].item() == pytest.approx(left.norm(dim=-1).mean().item(), abs=1e-4)
    assert found[1, 0, 16] < 1e-3


def test_angles_are_those_between_the_spans() -> None:
    left, right = (torch.linalg.qr(torch.randn(1, 2, 12, 12).double()).Q for _ in range(2))
    right[0, 1] = left[0, 1]
    found = principal_angles(left, right, [1, 4, 12])
    for i, rank in enumerate((1, 4, 12)):
        expected = subspace_angles(left[0, 0, :, :rank].numpy(), right[0, 0, :, :rank].numpy())[::-1].copy()
        torch.testing.assert_close(found[0, 0, i, :rank], torch.tensor(expected).rad2deg().float(), atol=1e-3, rtol=0)
        assert (found[0, 0, i, rank:] == 90).all()
        assert found[0, 1, i, :rank].abs().max() < 1e-4


def test_latent_channels_are_those_of_a_direct_svd() -> None:
    model, ids = tiny("llama"), prompt_ids(200)
    prefill = SharedPrefill(model, ids)
    list(prefill.run())
    keys, rope = prefill.groups[0].keys[1], model.rope(200)
    basis = KeyBasis.of(keys, rope)
    own, latent = basis.quantiles(keys)
    x = rope.unrotate(keys[None], 0)[0].transpose(0, 1).flatten(1).double()
    levels = torch.tensor(QUANTILES, dtype=torch.float64)
    torch.testing.assert_close(own.double(), torch.quantile(x, levels, dim=0).T, rtol=2e-3, atol=2e-3)
    _, _, vh = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    projected = (x - x.mean(0)) @ vh.T
    expected = torch.quantile(projected, levels, dim=0).T
    for channel in range(8):  # a singular vector's sign is arbitrary
        options = [expected[channel], -expected[channel].flip(0)]
        assert min((latent[channel].double() - option).abs().max().item() for option in options) < 0.02
    spread = latent[:, -1] - latent[:, 0]
    assert spread[0] > spread[-1]


def test_thinning_keeps_both_ends() -> None:
    x = torch.arange(1000.0)[:, None]
    kept = thin(x, 64)
    assert kept.shape == (64, 1) and kept[0] == 0 and kept[-1] == 999
    assert thin(x[:5], 64) is not None and len(thin(x[:5], 64)) == 5
