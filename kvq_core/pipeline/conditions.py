"""What a run was made under, as its record says it: environment, capture settings, stress and times."""

import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

import torch

from kvq_core.capture.attention import SINKS
from kvq_core.capture.distribution import QUANTILES
from kvq_core.capture.spectra import RANKS
from kvq_core.engine.fidelity import TOPK
from kvq_core.models import identity_of
from kvq_core.pipeline.state import Run
from kvq_core.record.environment import Environment, ReferenceFile
from kvq_core.record.fields import CaptureInfo, RunTiming, StressRecord

_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "gradio")


def environment(run: Run) -> Environment:
    model, spec = run.model, run.spec
    versions = {"python": platform.python_version()}
    for library in _LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            continue
    shape = model.shape
    threads = torch.get_num_threads()
    on_cpu = f"CPU, {threads} thread{'s' * (threads != 1)}"
    device = torch.cuda.get_device_name() if model.device.type == "cuda" else on_cpu
    return Environment(
        versions=versions,
        device=device,
        dtype=str(model.dtype).removeprefix("torch."),
        model=model.id,
        model_title=model.title,
        weights_hash=model.weights_hash,
        model_hash=model.model_hash,
        quantization=model.quantization,
        weights_bytes=model.weights_bytes,
        reference=None if spec.reference is None else _reference(spec.reference),
        revision=model.revision,
        seed=spec.seed,
        layers=shape.layers,
        query_heads=shape.query_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        kinds=None if shape.uniform else [kind.model_dump(exclude_defaults=True) for kind in shape.kinds],
        lanes_at_once=run.size if len(run.batches) > 1 else None,
        reference_apart=run.answer is not None and run.answer.logits is not None,
    )


def _reference(id: str) -> ReferenceFile:
    told = identity_of(id)
    fields = {name: value for name, value in told.items() if name in ReferenceFile.model_fields}
    return ReferenceFile(model=told["id"], model_title=told["title"], **fields)


def capture_info(run: Run) -> CaptureInfo:
    held = run.first.captures
    if held is None:
        return CaptureInfo(detail="off", layers=[], heads=[], step_edges=[], position_edges=[], topk=TOPK)
    tap, every = held.tap, [batch.captures for batch in run.batches if batch.captures is not None]
    return CaptureInfo(
        detail=held.detail,
        layers=tap.map_layers,
        heads=tap.map_heads,
        step_edges=tap.step_edges,
        position_edges=tap.position_edges,
        topk=TOPK,
        attention_steps=held.attention.captured_steps,
        sink_tokens=SINKS,
        depth_edges=held.attention.depths.edges,
        distribution_layers=held.distribution_layers,
        quantiles=QUANTILES,
        angle_ranks=RANKS,
        subspace_texts={kind: other.description for kind, other in held.others.items()},
        seconds=sum(each.seconds for each in every),
        seconds_decoding=sum(each.seconds_decoding for each in every),
    )


def stress_record(run: Run) -> StressRecord | None:
    applied, found = run.stress, run.unchanged
    if applied is None or found is None:
        return None
    done = []
    if run.spec.stress.key_outlier_scale != 1:
        done.append(
            "the queries' channels were divided by what the keys' were multiplied with, so every q·k is the same"
        )
    if run.spec.stress.key_bias != 0:
        done.append("one vector was added to all keys of a head, which moves all scores of a query alike")
    sentence = (
        f"Full-precision attention does not change: {'; '.join(done)}. Over the last {found.positions} prompt "
        f"positions the reference's next-token distribution moved by at most {found.kld_max:.1g} nats of KL divergence "
        f"(allowed: {found.tolerance:g}). Damage a lane shows beyond this is its quantization's."
    )
    return StressRecord(
        settings=run.spec.stress.model_dump(mode="json"),
        layers=applied.layers,
        kv_heads=applied.kv_heads,
        pairs=applied.pairs,
        **asdict(found),
        sentence=sentence,
    )


def timing(run: Run) -> RunTiming:
    steps = [seconds for batch in run.batches for seconds in batch.decode.step_seconds]
    rows = sum(sum(batch.decode.step_rows) for batch in run.batches)
    return RunTiming(
        prefill_s=run.seconds["prefill"],
        encode_s=run.seconds["encode"],
        decode_s=run.seconds["decode"],
        steps=len(steps),
        ms_per_step=1000 * sum(steps) / len(steps) if steps else None,
        rows_mean=rows / len(steps) if steps else 0.0,
        total_s=run.seconds["total"],
    )
