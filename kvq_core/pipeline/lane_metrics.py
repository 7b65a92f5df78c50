"""The numbers of a finished lane, from what was scored and captured of it."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from kvq_core.capture.cache_errors import CacheErrors
from kvq_core.engine.fidelity import perplexity_block
from kvq_core.engine.lane_state import LaneState
from kvq_core.engine.stored_bytes import layers_quantized, tokens_quantized
from kvq_core.pipeline.batch import Batch
from kvq_core.pipeline.prompt_scores import turn
from kvq_core.record.fields import DRAFT_TOKENS, Metrics
from kvq_core.record.prompt_fields import TurnMetrics


def lane_metrics(batch: Batch, state: LaneState, at: int) -> Metrics:
    fidelity = batch.fidelity
    metrics = Metrics(n_scored=fidelity.n_scored, near_tie_margin=batch.near_tie_margin)
    metrics.first_divergence = state.first_divergence
    metrics.matched_prefix = len(state.token_ids) if state.first_divergence is None else state.first_divergence
    if state.cache is not None:
        metrics.layers_quantized = layers_quantized(state.cache)
        metrics.tokens_quantized = tokens_quantized(state.cache)
    if batch.captures is not None and at in batch.captures.errors:
        _note_errors(metrics, batch.captures.errors[at], list(batch.model.shape.captured))
    if batch.prompt is not None:
        metrics.prompt = batch.prompt.prompt_metrics(state)
    column = partial(_column, batch, state, at)
    metrics.turns = _turns(batch, state, at)
    metrics.n_scored = len(column("kld"))
    if not metrics.n_scored:
        return metrics
    kld, same = column("kld").double(), column("same_top")
    flips = same == 0
    metrics.kld_mean, metrics.kld_max = kld.mean().item(), kld.max().item()
    metrics.kld_median, metrics.kld_p99 = kld.quantile(0.5).item(), kld.quantile(0.99).item()
    metrics.flips, metrics.flip_rate = int(flips.sum()), flips.double().mean().item()
    ties = column("reference/margin") <= metrics.near_tie_margin
    metrics.near_tie_flips = int((flips & ties).sum())
    metrics.perplexity_block = perplexity_block(column("nll"), column("reference/nll"), kld, column("delta_p"), same)
    metrics.ppl_ratio = metrics.perplexity_block["Mean PPL(Q)/PPL(base)"].value
    metrics.acceptance = column("acceptance").double().mean().item()
    metrics.tokens_a_step = tokens_a_step(_answers(batch, state, at))
    metrics.rms_dp = metrics.perplexity_block["RMS Δp"].value
    if batch.captures is not None and state.kernel is None:
        tap, looked, scored = batch.captures.tap, batch.captures.attention, slice(0, fidelity.n_scored)
        own, steps = list(batch.model.shape.captured), len(looked.captured_steps)
        metrics.attention_delta_mean = tap.mean[at, own][..., scored].mean().item()
        metrics.attention_delta_max = tap.max[at, ..., scored].max().item()
        metrics.attention_delta_reference_query = looked.reference_query[at, :steps][:, own].mean().item()
    return metrics


def _note_errors(metrics: Metrics, errors: CacheErrors, own: list[int]) -> None:
    """Of the cache itself, in the layers that are looked at."""
    metrics.key_rmse, metrics.value_rmse = errors.key_rmse, errors.value_rmse
    metrics.in_subspace_error = errors.in_subspace_error
    metrics.output_error = errors.output[own].mean().item()
    metrics.output_bound = None if errors.bound is None else errors.bound[own].mean().item()


def _column(batch: Batch, state: LaneState, at: int, name: str) -> Tensor:
    """What is scored of a lane: the answer, after the given ones of a conversation all of whose answers are."""
    own = batch.fidelity.column(name, None if name.startswith("reference/") else at)
    if batch.turns is None or state not in batch.turns.states:
        return own
    return torch.cat([batch.turns.column(name, state), own])


def _answers(batch: Batch, state: LaneState, at: int) -> list[Tensor]:
    """Acceptances (positions,) of every answer that is scored, the generated one last."""
    given = [] if batch.turns is None else batch.turns.by_answer("acceptance", state, batch.script)
    return [*given, batch.fidelity.column("acceptance", at)]


def _turns(batch: Batch, state: LaneState, at: int) -> list[TurnMetrics]:
    """Each answer's own figures, where all of them are scored."""
    if batch.turns is None:
        return []
    found = batch.turns.turn_metrics(state, batch.script)
    if batch.fidelity.n_scored:
        kld, same = batch.fidelity.column("kld", at), batch.fidelity.column("same_top", at)
        found.append(turn(len(batch.decode.token_ids), kld, same))
    return found


def tokens_a_step(series: Sequence[Tensor], drafted: int = DRAFT_TOKENS) -> float | None:
    """Tokens that one pass of the verifier, the full-precision cache, yields where a drafter reads the lane's, mean
    over where it may begin: 1 + the sum over k up to ``drafted`` of the product of k consecutive acceptances, because a
    draft counts up to its first refusal.

    ``series``: acceptances (positions,) of stretches of text, each in order; none reaches from one into the next. None
    where all are shorter than ``drafted``. Of the series rather than the mean, since refusals come in clusters.
    """
    windows = [part.double().unfold(0, drafted, 1) for part in series if len(part) >= drafted]
    return 1 + torch.cat(windows).cumprod(-1).sum(-1).mean().item() if windows else None
