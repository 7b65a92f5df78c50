"""A small but complete record with arrays, as ``sample_run`` gives it."""

import torch

from kvq_core.record.environment import Environment
from kvq_core.record.fields import CaptureInfo, LaneRecord, Metrics, Record, Reference, RuleRecord, RunTiming
from kvq_core.record.memory import Memory


def make_sample(
    id: str = "0123456789abcdef", created: str = "2026-01-02T03:04:05+00:00", prompt: str = "Say hi.", text: str = "Hi."
) -> tuple[Record, dict[str, torch.Tensor]]:
    metrics = Metrics(n_scored=63, kld_mean=0.125, kld_p99=0.5, flip_rate=0.25, ppl_ratio=1.5, first_divergence=7)
    lanes = [_lane("KIVI 2-bit", "kivi", metrics, text), _lane("SQuat", "squat", metrics, text)]
    record = Record(
        id=id,
        results_version=1,
        created=created,
        spec={"prompt": prompt, "model": "m"},
        environment=Environment(
            versions={"torch": "2"},
            device="cpu",
            dtype="float32",
            model="m",
            model_title="A model",
            weights_hash="0" * 16,
            model_hash="0" * 16,
            revision=None,
            seed=0,
            layers=2,
            query_heads=4,
            kv_heads=2,
            head_dim=8,
        ),
        reference=Reference(
            text=text,
            token_ids=[1, 2],
            tokens=["H", "i"],
            prompt_token_ids=[3],
            prompt_tokens=["x"],
            finish="eos",
            ppl=2.0,
        ),
        noise_floor=_lane("Noise floor", "fp16", metrics, text),
        lanes=lanes,
        capture=CaptureInfo(detail="off", layers=[], heads=[], step_edges=[], position_edges=[], topk=5),
        timing=RunTiming(prefill_s=1, encode_s=1, decode_s=1, steps=63, ms_per_step=1.0, rows_mean=3.0, total_s=3.0),
    )
    generator = torch.Generator().manual_seed(int(id, 16) % 2**31)
    arrays = {
        "lane/0/kld": torch.rand(63, generator=generator),
        "lane/0/delta_map": torch.randint(-127, 128, (2, 4, 8, 8), generator=generator, dtype=torch.int8),
        "reference/topk_ids": torch.arange(10, dtype=torch.int32).view(2, 5),
        "subspace/deviation_all": torch.ones(1, 3).expand(2, 3),  # not contiguous on purpose
    }
    return record, arrays


def _lane(label: str, method: str, metrics: Metrics, text: str) -> LaneRecord:
    memory = Memory(
        key_bits=3.0,
        value_bits=3.5,
        key_bits_quantized=3.0,
        value_bits_quantized=3.0,
        bytes_by_part={},
        shared_bytes=0,
        encoder_bytes=0,
        kv_ratio=0.2,
        tokens=64,
    )
    stored = {"method": method, "title": method, "summary": "", "knobs": {}}
    where = {"tensors": "both", "layers": "all", "sink_tokens": None, "recent_tokens": None}
    return LaneRecord(
        label=label,
        **stored,
        **where,
        rules=[RuleRecord(**stored, **where)],
        status="done",
        text=text,
        metrics=metrics,
        memory=memory,
    )
