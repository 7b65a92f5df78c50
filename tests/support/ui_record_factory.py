"""A synthetic finished run of full size for tests of the page: schema-valid, random, with every array."""

import torch

from kvq_core.methods import make
from kvq_core.record.environment import Environment
from kvq_core.record.fields import (
    CaptureInfo,
    Interval,
    LaneRecord,
    Metrics,
    Record,
    Reference,
    RuleRecord,
    RunTiming,
    Timing,
)
from kvq_core.record.memory import Memory
from kvq_core.spec import parse_spec

LAYERS, HEADS, QUERY_HEADS, DIM = 30, 3, 9, 64
METHODS = ("kivi", "squat", "per_token", "per_channel")


def make_run(lanes: int = 3, scored: int = 63, tokens: int = 480, labels: tuple[str, ...] = (), text: str = " word"):
    """A record and its arrays; ``text`` is every token of every answer. Of long ones attention is kept at few steps,
    and maps have bins of steps, as runs that a store takes have them."""
    attended, bins = list(range(0, scored, max(8, scored // 16))), min(64, scored)
    random = torch.Generator().manual_seed(lanes * 1000 + scored)
    names = labels or tuple(f"Lane {i}" for i in range(lanes))
    spec = parse_spec(
        {"prompt": "A prompt. " * 40, "lanes": [{"label": n, "method": METHODS[i % 4]} for i, n in enumerate(names)]}
    )
    arrays = _run_arrays(scored, random)
    for at in ("noise", *range(len(names))):
        arrays |= _lane_arrays(at, scored, tokens, random)
    arrays |= _deep_arrays(len(names), scored, len(attended), random)
    pieces = [text] * (scored + 1)
    record = Record(
        id="feedfacefeedface",
        results_version=1,
        created="2026-01-02T03:04:05+00:00",
        spec=spec.model_dump(mode="json"),
        environment=Environment(
            versions={"torch": "2"},
            device="CPU",
            dtype="float32",
            model="synthetic",
            model_title="Synthetic",
            revision=None,
            weights_hash="0" * 16,
            seed=0,
            layers=LAYERS,
            query_heads=QUERY_HEADS,
            kv_heads=HEADS,
            head_dim=DIM,
        ),
        reference=Reference(
            text="".join(pieces),
            token_ids=list(range(scored + 1)),
            tokens=pieces,
            prompt_token_ids=[1] * (tokens - scored),
            prompt_tokens=["x"] * (tokens - scored),
            finish="length",
            ppl=2.0,
        ),
        noise_floor=_lane("Noise floor", "fp16", scored, tokens, pieces),
        lanes=[_lane(name, METHODS[i % 4], scored, tokens, pieces) for i, name in enumerate(names)],
        capture=CaptureInfo(
            detail="normal",
            layers=list(range(LAYERS)),
            heads=list(range(QUERY_HEADS)),
            topk=5,
            step_edges=[round(i * scored / bins) for i in range(bins + 1)],
            position_edges=[round(i * tokens / 240) for i in range(241)],
            attention_steps=attended,
            sink_tokens=4,
            depth_edges=[round(i * tokens / 16) for i in range(17)],
            distribution_layers=[0, LAYERS // 2, LAYERS - 1],
            quantiles=[0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0],
            angle_ranks=[1, 5, 16],
            subspace_texts={"same_kind": "Another story.", "other_kind": "A table."},
        ),
        timing=RunTiming(
            prefill_s=1, encode_s=1, decode_s=9, steps=scored, ms_per_step=140.0, rows_mean=3.0, total_s=12.0
        ),
    )
    return record, arrays


def _run_arrays(scored: int, random: torch.Generator) -> dict[str, torch.Tensor]:
    rand = lambda *shape: torch.rand(*shape, generator=random)  # noqa: E731
    falling = torch.linspace(0, 6, DIM).neg().exp()
    return {
        "reference/nll": rand(scored),
        "reference/margin": rand(scored) * 4,
        "reference/topk_ids": torch.randint(0, 60, (scored, 5), generator=random, dtype=torch.int32),
        "reference/topk_probs": rand(scored, 5).sort(-1, descending=True).values,
        "centred/key_pre": rand(LAYERS, HEADS, 1) * falling * 90,
        "centred/key_post": rand(LAYERS, HEADS, 1) * falling**0.5 * 90,
        "centred/key_pre_concat": 90 * torch.linspace(0, 7, HEADS * DIM).neg().exp().expand(LAYERS, -1).clone(),
        "centred/key_post_concat": 90 * torch.linspace(0, 4, HEADS * DIM).neg().exp().expand(LAYERS, -1).clone(),
        "subspace/deviation_prompt": torch.linspace(1, 0, DIM + 1).expand(LAYERS, HEADS, -1).clone(),
        "subspace/deviation_all": torch.linspace(1, 0, DIM + 1).expand(LAYERS, HEADS, -1).clone(),
    }


def _lane_arrays(at: object, scored: int, tokens: int, random: torch.Generator) -> dict[str, torch.Tensor]:
    rand = lambda *shape: torch.rand(*shape, generator=random)  # noqa: E731
    widths = torch.full((1, 1, tokens, 1), 3.0)
    widths[:, :, -32:] = 16
    found = {
        "kld": rand(scored) ** 4 * 3,
        "nll": rand(scored),
        "delta_p": rand(scored) - 0.5,
        "same_top": (rand(scored) > 0.1).to(torch.uint8),
        "topk_ids": torch.randint(0, 60, (scored, 5), generator=random, dtype=torch.int32),
        "topk_probs": rand(scored, 5),
        "acceptance": 1 - rand(scored) ** 4,
        "delta_mean": rand(LAYERS, QUERY_HEADS, scored).half(),
        "delta_max": rand(LAYERS, QUERY_HEADS, scored).half(),
        "key_error": rand(LAYERS, HEADS),
        "value_error": rand(LAYERS, HEADS),
        "key_error_energy": rand(LAYERS, HEADS, DIM),
        "key_bits": widths.half(),
        "value_bits": widths.half(),
    }
    if at != "noise":
        shape = (LAYERS, QUERY_HEADS, min(64, scored), 240)
        found["delta_map"] = torch.randint(-127, 128, shape, generator=random, dtype=torch.int8)
        found["delta_scale"] = rand(LAYERS, QUERY_HEADS) / 20
    return {f"lane/{at}/{name}": tensor for name, tensor in found.items()}


def _deep_arrays(lanes: int, scored: int, steps: int, random: torch.Generator) -> dict[str, torch.Tensor]:
    """What the deeper captures add; lane 0 alone has codebooks, latent channels and outliers."""
    rand = lambda *shape: torch.rand(*shape, generator=random)  # noqa: E731
    masses = lambda: (rand(steps, LAYERS, QUERY_HEADS, 240) * 255).to(torch.uint8)  # noqa: E731
    quantiles = lambda: rand(3, HEADS * DIM, 7).sort(-1).values  # noqa: E731
    angles = lambda: 90 * rand(LAYERS, HEADS, 3, 16).sort(-1).values  # noqa: E731
    falling = torch.linspace(0, 6, DIM).neg().exp().expand(LAYERS, HEADS, -1)
    found = {
        **{f"mean/{name}": 200 * rand(LAYERS, HEADS) for name in ("key_pre", "key_post", "value")},
        "centred/value": 90 * falling**0.2,
        "centred/value_concat": 90 * torch.linspace(0, 2, HEADS * DIM).neg().exp().expand(LAYERS, -1).clone(),
        "spectra/key_quantiles": quantiles(),
        "spectra/latent_quantiles": quantiles(),
        "reference/key_channel_energy": rand(LAYERS, HEADS, DIM),
        "reference/value_channel_energy": rand(LAYERS, HEADS, DIM),
        "reference/sink_mass": rand(steps, LAYERS, QUERY_HEADS),
        "reference/attention_rows": masses(),
        "gaussian/bits": torch.linspace(0.5, 8, 16),
        "gaussian/key_error": 0.9 * 2 ** -torch.linspace(0.5, 8, 16),
        "gaussian/value_error": 2 ** -torch.linspace(0.5, 8, 16),
        "subspace/deviation_same_kind": torch.linspace(1, 0, DIM + 1).sqrt().expand(LAYERS, HEADS, -1).clone(),
        "subspace/deviation_other_kind": torch.linspace(1, 0, DIM + 1).sqrt().expand(LAYERS, HEADS, -1).clone(),
        "subspace/angles_query_key": angles(),
        **_pair_arrays(),
    }
    for i in range(lanes):
        lane = {
            "delta_offset": rand(LAYERS, QUERY_HEADS, scored) - 0.5,
            "key_channel_error": rand(LAYERS, HEADS, DIM),
            "value_channel_error": rand(LAYERS, HEADS, DIM),
            "depth_key_error": rand(LAYERS, HEADS, 16),
            "depth_value_error": rand(LAYERS, HEADS, 16),
            "depth_score_error": rand(LAYERS, QUERY_HEADS, 16),
            "attention_kl": rand(steps, LAYERS, QUERY_HEADS),
            "sink_mass": rand(steps, LAYERS, QUERY_HEADS) - 0.5,
            "attention_rows": masses(),
            "output_relative": rand(LAYERS, QUERY_HEADS),
            "key_quantiles": quantiles(),
            "latent_quantiles": quantiles(),
            "centred_key": 90 * falling**0.5,
            "angles_query_key": angles(),
            "angles_key_key": angles(),
        }
        if i == 0:
            lane |= {
                "key_code_counts": (rand(LAYERS, HEADS, 4, 32) * 9).int(),
                "key_symmetric_share": rand(LAYERS, HEADS),
                "key_outlier_share": rand(LAYERS, HEADS) / 50,
                "key_latent_bits": torch.tensor([8.0, 4, 4, 2, 2, 0, 0, 0])
                .repeat_interleave(HEADS * DIM // 8)[None]
                .expand(LAYERS, -1)
                .clone(),
            }
        found |= {f"lane/{i}/{name}": tensor.contiguous() for name, tensor in lane.items()}
    return found


def _pair_arrays() -> dict[str, torch.Tensor]:
    """Channel i is turned with channel i + DIM / 2; slow pairs have large biases."""
    half = DIM // 2
    sizes = {"key_bias": (0.1, 90.0), "key_mean": (0.5, 91.0), "key_spread": (3.0, 1.0)}
    return {
        "pairs/of": torch.arange(half, dtype=torch.int16).repeat(2).expand(LAYERS, -1).clone(),
        "pairs/theta": (1e5 ** -(torch.arange(half) / half)).expand(LAYERS, -1).clone(),
        **{f"pairs/{name}": torch.linspace(*of, half).expand(LAYERS, HEADS, -1).clone() for name, of in sizes.items()},
    }


def _lane(label: str, method: str, scored: int, tokens: int, pieces: list[str]) -> LaneRecord:
    parts = {"key_codes": 900_000, "key_scales": 220_000, "key_zeros": 220_000, "key_window": 280_000}
    parts |= {name.replace("key", "value"): size for name, size in parts.items()}
    stored = {
        "method": method,
        "title": method,
        "summary": "K2 V2 · group 32",
        "knobs": make(method).model_dump(mode="json"),
    }
    where = {"tensors": "both", "layers": "all", "sink_tokens": None, "recent_tokens": None}
    return LaneRecord(
        label=label,
        **stored,
        **where,
        rules=[RuleRecord(**stored, **where)],
        status="done",
        text="".join(pieces),
        tokens=pieces,
        token_ids=list(range(len(pieces))),
        finish="length",
        metrics=Metrics(
            n_scored=scored,
            kld_mean=0.2,
            kld_median=0.1,
            kld_p99=0.9,
            kld_max=1.1,
            flip_rate=0.11,
            ppl_ratio=1.3,
            acceptance=0.9,
            tokens_a_step=4.1,
            rms_dp=18.0,
            perplexity_block={"Mean KLD": Interval(value=0.2, se=0.01), "Maximum KLD": Interval(value=1.1, se=None)},
            first_divergence=7,
            matched_prefix=7,
            flips=7,
            near_tie_flips=2,
            layers_quantized=LAYERS,
            tokens_quantized=tokens - 32,
            key_rmse=0.18,
            output_error=0.05,
            output_bound=2.0,
            value_rmse=0.4,
        ),
        memory=Memory(
            key_bits=3.5,
            value_bits=3.5,
            key_bits_quantized=3.0,
            value_bits_quantized=3.0,
            bytes_by_part=parts,
            shared_bytes=0,
            encoder_bytes=0,
            kv_ratio=0.22,
            tokens=tokens,
        ),
        timing=Timing(encode_prompt_s=0.2, encode_decode_s=0.1),
    )
