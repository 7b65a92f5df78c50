"""The arrays of a run, beside its record in ``arrays.safetensors``: names, shapes, units, and how they are read.

Every quantity says its unit here once; ``S`` scored positions, ``L`` layers, ``H`` KV heads, ``Q`` query heads, ``D``
head_dim, ``T`` tokens at the end of the run; ``M``, ``Q'`` the layers and query heads of capture.layers and
capture.heads; ``A`` the scored positions in capture.attention_steps, ``P`` the position bins of capture.position_edges,
``B`` the buckets of key position in capture.depth_edges, ``N`` the layers in capture.distribution_layers, ``F`` the
quantile levels in capture.quantiles, ``R`` the ranks in capture.angle_ranks, ``W`` RoPE pairs of a layer. Bins of
steps and positions are those of all tokens that were asked for: an answer that ended before leaves zeros behind its end
(analysis/reached.py). Every array is optional: a run with captures off, or an older one, has fewer, and a reader says
"not captured in this run".

The ``T`` tokens are the prompt and all tokens of the answer but the last, which is never fed and never stored. At
position s of ``S`` token s of the answer is fed: its query reads the prompt and tokens 0 .. s and predicts token s + 1;
token 0 is the prompt's own prediction and is scored nowhere. "The prompt's" keys, values and queries are of its tokens
alone, "all queries" of these and of the ``S`` fed tokens. Layers that captures do not look at (those with windows, say)
hold zeros.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

ARRAYS = {
    # of the run
    "reference/nll": "(S,) nats, of the followed token under the reference",
    "reference/margin": "(S,) logits, the reference's top1 - top2",
    "reference/topk_ids": "(S, 5) int32",
    "reference/topk_probs": "(S, 5)",
    "centred/key_pre": "(L, H, D) singular values of the prompt's keys before RoPE, less their mean over the prompt, "
    "largest first",
    "centred/key_post": "(L, H, D) the same after RoPE",
    "centred/key_pre_concat": "(L, H * D) heads of a layer concatenated: what SVDq decomposes",
    "centred/key_post_concat": "(L, H * D)",
    "centred/value": "(L, H, D) of the prompt's values (RoPE does not touch them)",
    "centred/value_concat": "(L, H * D)",
    "mean/key_pre": "(L, H) size of the mean in the same units: root of the prompt's tokens times the norm of the mean "
    "key before RoPE; its square and those of the singular values sum to ||K||_F^2",
    "mean/key_post": "(L, H) the same after RoPE",
    "mean/value": "(L, H)",
    "pairs/of": "(L, D) int16 which pair, of those that RoPE turns together, each key channel is in; one that is not "
    "turned is its own; -1 in layers not looked at or of unknown rotation",
    "pairs/theta": "(L, W) radians a token by which RoPE turns each pair; 0: not turned, or no such pair",
    "pairs/key_bias": "(L, H, W) norm of the key projection's bias in each pair, before RoPE; absent where there is "
    "none or a norm follows",
    "pairs/key_mean": "(L, H, W) norm of the mean of the prompt's keys in each pair, before RoPE",
    "pairs/key_spread": "(L, H, W) root mean square distance of the prompt's keys from that mean in each pair",
    "spectra/key_quantiles": "(N, H * D, F) quantiles over the prompt's tokens of each key channel before RoPE, heads "
    "side by side (SVDq, Figure 1)",
    "spectra/latent_quantiles": "(N, H * D, F) the same of each latent channel: centred keys times the right singular "
    "vectors of the layer, strongest first (SVDq, Figure 2)",
    "reference/key_channel_energy": "(L, H, D) squared size of each key channel after RoPE, summed over T; sums to "
    "||K||_F^2",
    "reference/value_channel_energy": "(L, H, D)",
    "reference/sink_mass": "(A, L, Q) attention mass on the first capture.sink_tokens tokens, as a fraction",
    "reference/attention_rows": "(A, M, Q', P) uint8 u: attention mass in each position bin, (u / 255)^2",
    "gaussian/key_post": "(L, H, D) eigenvalues of the covariance of the prompt's keys after RoPE, largest first; "
    "what reverse water-filling needs",
    "gaussian/key_pre": "(L, H, D) the same before RoPE",
    "gaussian/value": "(L, H, D)",
    "gaussian/bits": "(G,) bits an element at which the reference curves are given",
    "gaussian/key_error": "(G,) relative error ||dK||_F / ||K||_F, mean over layers as key_rmse is, of a Gaussian "
    "source with those covariances before RoPE at its rate-distortion limit: a reference, not a bound",
    "gaussian/value_error": "(G,)",
    "subspace/deviation_prompt": "(L, H, D + 1) mean deviation of normalized queries, at most 512 evenly spaced of all "
    "queries, from the top-r subspace of the prompt's queries, r = 0 .. D (SQuat, Definition 1)",
    "subspace/deviation_all": "(L, H, D + 1) the same, subspace of all queries",
    "subspace/deviation_same_kind": "(L, H, D + 1) the same, subspace of another prompt's queries; the prompt is "
    "told in capture.subspace_texts",
    "subspace/deviation_other_kind": "(L, H, D + 1) the same, of a prompt of another kind",
    "subspace/angles_query_key": "(L, H, R, max rank) principal angles in degrees, smallest first, between the top-r "
    "right singular subspaces of the prompt's queries and of all keys after RoPE; entries beyond r are 90",
    # of lane i (its index in `lanes`), "lane/noise/..." for the noise floor, "lane/kernel/..." for another kernel's
    "lane/{i}/kld": "(S,) nats, KL(reference || lane) of a forced row",
    "lane/{i}/nll": "(S,) nats, of the followed token",
    "lane/{i}/delta_p": "(S,) probability of the followed token, lane - reference, as a fraction",
    "lane/{i}/same_top": "(S,) uint8, 1 where lane and reference have the same most probable token",
    "lane/{i}/acceptance": "(S,) sum over the vocabulary of min(p, q) of reference and lane: the share of its drafts a "
    "drafter on this cache would keep; in older runs absent",
    "lane/{i}/topk_ids": "(S, 5) int32",
    "lane/{i}/topk_probs": "(S, 5)",
    "prompt/positions": "(U,) int32 positions of the prompt whose next tokens are scored in lanes that read it through "
    "their own caches",
    "prompt/nll": "(U,) nats, of the token that follows, under the reference",
    "turns/positions": "(V,) int32 positions of the conversation whose next tokens are of given answers, which are "
    "scored beside the generated one",
    "turns/nll": "(V,) nats",
    "lane/{i}/turns_kld": "(V,) nats",
    "lane/{i}/turns_nll": "(V,) nats",
    "lane/{i}/turns_same_top": "(V,) uint8",
    "lane/{i}/prompt_kld": "(U,) nats, KL(reference || lane)",
    "lane/{i}/prompt_nll": "(U,) nats",
    "lane/{i}/prompt_same_top": "(U,) uint8",
    "lane/{i}/delta_mean": "(L, Q, S) mean |score delta| over quantized positions, own query, centred per row",
    "lane/{i}/delta_max": "(L, Q, S) maximum of the same",
    "lane/{i}/delta_by_keys": "(A, L, Q) mean |score delta| over quantized positions with the reference's query, "
    "centred per row: what the keys' error alone does",
    "lane/{i}/uncentred_by_keys": "(A, L, Q) the same, not centred",
    "lane/{i}/delta_offset": "(L, Q, S) mean score delta that centring took from each row; centred + this = uncentred",
    "lane/{i}/delta_map": "(M, Q', steps, P) int8, signed extreme of the centred delta in each bin of step x position",
    "lane/{i}/delta_scale": "(M, Q') multiply the int8 map by this",
    "lane/{i}/looked_offset": "(Q, S) delta_offset of the one layer that was looked at after the run",
    "reference/looked_cosines_query_key": "(H, D, D) of that layer: cosines between the right singular directions of "
    "the prompt's queries and of all keys after RoPE, strongest first; singular values of its first r rows and columns "
    "are the cosines of the principal angles at rank r",
    "lane/{i}/looked_cosines_query_key": "(H, D, D) the same with the lane's keys",
    "lane/{i}/looked_cosines_key_key": "(H, D, D) the same of the reference's keys and the lane's",
    "lane/{i}/looked_kl": "(A, Q) nats, attention_kl of the one layer that was looked at after the run",
    "lane/{i}/looked_kld": "(S,) nats, kld as it came out when the last layer was looked at after the run",
    "lane/{i}/key_error": "(L, H) ||dK||_F / ||K||_F after RoPE at the end of the run",
    "lane/{i}/value_error": "(L, H)",
    "lane/{i}/key_channel_error": "(L, H, D) squared key error of each channel after RoPE, summed over T; sums to "
    "||dK||_F^2",
    "lane/{i}/value_channel_error": "(L, H, D)",
    "lane/{i}/depth_key_error": "(L, H, B) ||dK||_F / ||K||_F in each bucket of key position, end of the run",
    "lane/{i}/depth_value_error": "(L, H, B)",
    "lane/{i}/depth_score_error": "(L, Q, B) mean |score delta| in each bucket over the steps A, own query, centred",
    "lane/{i}/attention_kl": "(A, L, Q) nats, KL(reference's attention || lane's), forced rows, own query; of a lane "
    "that leaves keys out KL(lane's || reference's)",
    "lane/{i}/sink_mass": "(A, L, Q) attention mass on the first capture.sink_tokens tokens, lane - reference",
    "lane/{i}/attention_rows": "(A, M, Q', P) uint8 as the reference's",
    "lane/{i}/output_relative": "(L, Q) ||dO||_F / ||O||_F of the attention output, end of the run, over the "
    "reference's queries of the steps A",
    "lane/{i}/value_weighted": "(L, Q) root of sum_i a_i ||dv_i||^2 / sum_i a_i ||v_i||^2, end of the run; a_i: the "
    "reference's attention to token i, its mean over the queries of the steps A",
    "lane/{i}/key_quantiles": "(N, H * D, F) as spectra/key_quantiles, of the lane's keys",
    "lane/{i}/latent_quantiles": "(N, H * D, F) the lane's keys in the reference's latent channels",
    "lane/{i}/centred_key": "(L, H, D) singular values of all of the lane's keys after RoPE, as read, less their mean",
    "lane/{i}/angles_query_key": "(L, H, R, max rank) degrees, as subspace/angles_query_key, with the lane's keys",
    "lane/{i}/angles_key_key": "(L, H, R, max rank) degrees, between the reference's keys and the lane's",
    "lane/{i}/key_code_counts": "(L, H, codebooks, codes) how often each stored code is used; 0: a dead code",
    "lane/{i}/value_code_counts": "(L, H, codebooks, codes)",
    "lane/{i}/key_symmetric_share": "(L, H) share of quantized groups stored with a symmetric code",
    "lane/{i}/value_symmetric_share": "(L, H)",
    "lane/{i}/key_outlier_share": "(L, H) share of stored elements kept apart in full precision as outliers",
    "lane/{i}/value_outlier_share": "(L, H)",
    "lane/{i}/key_latent_bits": "(L, H * D) code bits of each latent channel, strongest first (per head: head by head)",
    "lane/{i}/key_error_energy": "(L, H, D) squared key error along each right singular direction of the prompt's "
    "queries, strongest direction first; sums to ||dK||_F^2",
    "lane/{i}/output_error": "(L, Q) ||change of the attention output||_2 at the reference's last query",
    "lane/{i}/output_bound": "(L, Q) upper bound of it (SQuat, Theorem 1, with ||V||_F as its proof has it); lanes "
    "that leave keys out have none",
    "lane/{i}/key_bits": "(L or 1, H or 1, T, C) stored bits of each key element, metadata included, in C equal groups "
    "of channels; exact where float32, and rounded by 1/2048 of itself at most (1/256 bit from 8 to 16) where float16",
    "lane/{i}/value_bits": "(L or 1, H or 1, T, C)",
}


# Of ARRAYS, those a lane has only where its method gives them (Codec.usage).
OF_SOME_METHODS = ("code_counts", "symmetric_share", "outlier_share", "latent_bits")
# And those of runs in which a lane read the prompt through its own cache.
OF_CHUNKED_PROMPTS = tuple(
    f"{kind}{name}" for kind in ("prompt", "turns") for name in ("/positions", "/nll", "_kld", "_nll", "_same_top")
)
# And those of models whose key projections have a bias.
OF_BIASES = ("pairs/key_bias",)
# And those of one layer that was looked at after a run.
OF_LOOKS = ("looked_offset", "looked_kl", "looked_kld", "looked_cosines_query_key", "looked_cosines_key_key")


Arrays = Mapping[str, Any]


def array(arrays: Arrays, name: str) -> np.ndarray | None:
    """A captured array as float32 with what is not finite set to 0, or None where the run kept none."""
    if name not in arrays:
        return None
    tensor = arrays[name]
    raw = tensor.float().numpy() if hasattr(tensor, "numpy") else np.asarray(tensor, dtype=np.float32)
    return np.nan_to_num(raw.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
