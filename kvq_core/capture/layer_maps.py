"""Score maps, attention and key distributions of one layer, of rows that were computed before: see engine.key_log."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvq_core.capture.attention import AttentionTap, Buckets
from kvq_core.capture.distribution import KeyBasis
from kvq_core.capture.scores import Extent, ScoreTap
from kvq_core.capture.spectra import query_directions
from kvq_core.engine.key_log import Place
from kvq_core.engine.tap import StepScores
from kvq_core.methods.prompt import query_gram

BLOCK_BYTES = 32_000_000  # of the scores of all rows that are computed at once


@dataclass(frozen=True)
class LayerMaps:
    """Of one layer, every query head of it, and as many steps as attention is kept of: ``arrays`` named as in the
    record, the axes as CaptureInfo has them."""

    arrays: dict[str, Tensor]
    heads: list[int]
    step_edges: list[int]
    position_edges: list[int]
    attention_steps: list[int]
    depth_edges: list[int]


def layer_maps(reference: Place, lanes: Sequence[Place], layer: int) -> LayerMaps:
    """What lanes make of a layer's scores beside the reference: rows of one run, or of runs that follow one answer."""
    kit, _ = reference
    heads, steps, dim = kit.queries[layer].shape[1:]
    extent = Extent(1, heads, dim, len(lanes), steps, kit.prompt + steps, floor=False, looked=(0,))
    every = list(range(heads))
    tap = ScoreTap(extent, [0], every)
    attention = AttentionTap(extent, steps, [0], every, Buckets(tap.bin_width, extent.tokens))
    for seen in _seen(reference, lanes, layer, extent):
        fresh = seen.own.shape[-2]
        tap.begin([(0, 0)] * len(lanes))
        tap.scores(seen)
        attention.scores(seen, tap.quantized)
        tap.advance(fresh)
        attention.advance(fresh)
    arrays = {"reference/attention_rows": attention.of_reference()["attention_rows"]}
    for at in range(len(lanes)):
        maps, scale = tap.int8_map(at)
        own = attention.of_lane(at)
        found = {"delta_map": maps, "delta_scale": scale, "attention_rows": own["attention_rows"]}
        found |= {"looked_offset": tap.offset[at, 0].half(), "looked_kl": own["attention_kl"][:, 0]}
        arrays |= {f"lane/{at}/{name}": values for name, values in found.items()}
    arrays |= _distributions(reference, lanes, layer) | _cosines(reference, lanes, layer)
    axes = tap.step_edges, tap.position_edges, attention.captured_steps, attention.depths.edges
    return LayerMaps(arrays, every, *axes)


def _seen(reference: Place, lanes: Sequence[Place], layer: int, extent: Extent) -> Iterator[StepScores]:
    """The scores of all rows, as a tap is shown them, some steps at a time."""
    kit, row = reference
    asking = kit.queries[layer][row]
    for steps in _blocks(reference, lanes, layer, extent):
        places = [reference, *lanes]
        own = torch.stack([of.scores(at, layer, steps) for of, at in places])
        others = torch.stack([own[0], *(of.scores(at, layer, steps, asking) for of, at in lanes)])
        reads = {}
        for number, (of, at) in enumerate(lanes, 1):
            left = of.reads.get(layer, [])
            if left and at in left[0]:
                reads[number] = left[of.starts.index(steps.start)][at]
        how = kit.scoring[layer]
        sinks = [None if how is None else how.sinks]
        yield StepScores([0], own[None], others[None], asking[None, :, steps], [reads], sinks)


def _blocks(reference: Place, lanes: Sequence[Place], layer: int, extent: Extent) -> Iterator[slice]:
    """Steps that are computed at once: passes one by one where rows leave keys out, which they choose anew in each."""
    kit, _ = reference
    if any(at in read for of, at in lanes for read in of.reads.get(layer, [])[:1]):
        yield from (slice(start, start + size) for start, size in zip(kit.starts, kit.passes, strict=True))
        return
    size = max(1, BLOCK_BYTES // (4 * (1 + extent.lanes) * extent.query_heads * extent.tokens))
    yield from (slice(start, min(start + size, extent.steps)) for start in range(0, extent.steps, size))


def _distributions(reference: Place, lanes: Sequence[Place], layer: int) -> dict[str, Tensor]:
    """How the prompt's keys spread over their own channels and over latent ones."""
    kit, _ = reference
    basis = KeyBasis.of(_keys(kit.prompt, reference, layer), kit.rope.on([layer]))
    found: dict[str, Tensor] = {}
    for name, place in [("spectra", reference), *((f"lane/{at}", place) for at, place in enumerate(lanes))]:
        own, latent = basis.quantiles(_keys(kit.prompt, place, layer))
        found |= {f"{name}/key_quantiles": own[None], f"{name}/latent_quantiles": latent[None]}
    return found


def _cosines(reference: Place, lanes: Sequence[Place], layer: int) -> dict[str, Tensor]:
    """Between the prompt's query directions and those of the keys in the end, and between keys and a lane's keys."""
    kit, row = reference
    asked, heads = kit.asked[layer], kit.keys[layer].shape[1]
    if not asked.shape[1]:  # queries of the prompt were not kept
        return {}
    queries = query_directions(query_gram(asked[None].float(), heads))[0]
    true, *others = (_directions(of.keys[layer][at]) for of, at in (reference, *lanes))
    found = {"reference/looked_cosines_query_key": queries.mT @ true}
    for at, keys in enumerate(others):
        found[f"lane/{at}/looked_cosines_query_key"] = queries.mT @ keys
        found[f"lane/{at}/looked_cosines_key_key"] = true.mT @ keys
    return {name: cosines.float().cpu() for name, cosines in found.items()}


def _directions(keys: Tensor) -> Tensor:
    """Of keys (kv_heads, head_dim, tokens)."""
    wide = keys.double()
    return query_directions(wide @ wide.mT)


def _keys(prompt: int, place: Place, layer: int) -> Tensor:
    """The prompt's keys as a row reads them in the end, (kv_heads, tokens, head_dim)."""
    kit, row = place
    return kit.keys[layer][row, ..., :prompt].mT
