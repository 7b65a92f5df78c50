"""All captures of one run: set up before it decodes, fed while it does, read when the reference has ended."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event

import torch
from torch import Tensor

from kvq_core.capture.attention import AttentionTap, Buckets
from kvq_core.capture.cache_errors import CacheErrors, ReferenceCache, cache_errors
from kvq_core.capture.distribution import KeyBasis
from kvq_core.capture.other_prompts import OtherPrompt, directions_of, other_prompts
from kvq_core.capture.pairs import key_pairs
from kvq_core.capture.plan import CapturePlan
from kvq_core.capture.scores import Extent, ScoreTap, to_host
from kvq_core.capture.spectra import (
    RANKS,
    deviations,
    eigenvalues,
    principal_angles,
    query_directions,
    spectra,
    thin,
)
from kvq_core.capture.usage import usage_of
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import LayerGroup, SharedPrefill
from kvq_core.engine.rows import Rows
from kvq_core.engine.tap import StepScores
from kvq_core.machine import threads
from kvq_core.methods.prompt import query_gram, stack_queries
from kvq_core.models import LoadedModel
from kvq_core.models.rope import Rope
from kvq_core.spec import ComparisonSpec

QUERIES = 512  # a KV head's queries a mean deviation is taken over, at most, evenly spaced


class Captures:
    """The run's tap (engine.tap.Tap), and what is measured of the caches and the prompt."""

    def __init__(
        self,
        model: LoadedModel,
        spec: ComparisonSpec,
        prefill: SharedPrefill,
        rope: Rope,
        extent: Extent,
        plan: CapturePlan,
        first: "Captures | None" = None,
    ):
        """``first``: those of the run's first batch, which have what is the prompt's and no lane's."""
        self.model, self.prefill, self.rope, self.extent = model, prefill, rope, extent
        self.detail, self._first = spec.capture.detail, first
        self.seconds = self.seconds_decoding = 0.0
        device = prefill.groups[0].device
        self.tap = ScoreTap(extent, plan.layers, plan.heads, device)
        bins = Buckets(self.tap.bin_width, extent.tokens)
        self.attention = AttentionTap(extent, plan.steps, plan.layers, plan.heads, bins, device)
        self.distribution_layers = plan.distributions
        self.errors: dict[int, CacheErrors] = {}
        self.truth: ReferenceCache | None = None
        self.others: dict[str, OtherPrompt] = {}
        self.remarks: dict[int, tuple[str, ...]] = {}  # by lane: what could not be looked at
        self._usage: dict[int, dict[str, Tensor]] = {}
        self._of_prompt: dict[str, Tensor] = {}
        self._at_end: dict[int, dict[str, Tensor]] = {}  # by lane; -1: the reference
        self._bases: dict[int, KeyBasis] = {}
        self._true_keys = torch.empty(0)
        self._chat = spec.chat
        # of the prompt's queries; set, like the two above, when the reference has ended: nobody waits for them before
        self.directions = torch.empty(0)

    @contextmanager
    def _clock(self, decoding: bool = False) -> Iterator[None]:
        began = time.perf_counter()
        yield
        passed = time.perf_counter() - began
        self.seconds += passed
        self.seconds_decoding += passed if decoding else 0.0

    def begin(self, quantized: list[tuple[int, int]]) -> None:
        """Call before a step: the range of key positions each lane holds quantized, (0, 0) for none."""
        self.tap.begin(quantized)

    def isolates(self, fresh: int) -> bool:
        return self.attention.looks(fresh)

    def scores(self, seen: StepScores) -> None:
        seen = seen.first(1 + self.extent.lanes)
        with self._clock(decoding=True):
            self.tap.scores(seen)
            self.attention.scores(seen, self.tap.quantized)

    def advance(self, fresh: int) -> None:
        """Call after a step of ``fresh`` tokens."""
        self.tap.advance(fresh)
        self.attention.advance(fresh)

    def close(self, rows: Rows, caches: dict[int, LaneCache]) -> None:
        """The reference has ended: measure the caches of the forced rows, by lane (row - 1)."""
        with self._clock():
            for tap in (self.tap, self.attention):
                to_host(tap)
            known = Event()  # the directions of the prompt's queries, and what lanes are compared with
            measuring = [partial(self._measure, rows, lane, cache, known) for lane, cache in caches.items()]
            for _ in threads.in_order([*self._of_no_lane(rows, known), *measuring], rows.cores):
                pass

    def _of_no_lane(self, rows: Rows, known: Event) -> list[Callable[[], None]]:
        """What is measured of the reference and the prompt, before the lanes and beside them."""
        if self._first is not None:
            return [partial(self._take_over, self._first, rows, known)]
        self.others = other_prompts(self.model, self._chat)
        others = {kind: directions_of(self.model, other.ids) for kind, other in self.others.items()}
        return [partial(self._measure_reference, rows, known), partial(self._read_prompt, others, known)]

    def _take_over(self, first: "Captures", rows: Rows, known: Event) -> None:
        """What the first batch measured of the prompt; errors are those against this batch's own reference."""
        try:
            self.directions, self._bases, self._true_keys = first.directions, first._bases, first._true_keys
            self.truth = self._truth(rows)
        finally:
            known.set()

    def _measure_reference(self, rows: Rows, known: Event) -> None:
        try:
            self._find_directions()
            self.truth = self._truth(rows)
            layers = self.distribution_layers
            self._bases = {layer: KeyBasis.of(self._key(rows, 0, layer)[0], self.rope.on([layer])) for layer in layers}
            self._true_keys = query_directions(self._key_grams(rows, 0)[0])
            self._at_end[-1] = self._quantiles(rows, 0)
            self._at_end[-1]["angles_query_key"] = principal_angles(self.directions, self._true_keys, RANKS)
        finally:
            known.set()

    @property
    def _groups(self) -> list[LayerGroup]:
        """The prompt's tensors of the layers that are looked at."""
        return [of for group in self.prefill.groups if (of := group.of(group.captured)) is not None]

    def _find_directions(self) -> None:
        dim = self.extent.head_dim
        self.directions = torch.zeros(self.extent.layers, self.model.shape.kv_heads, dim, dim)
        for group in self._groups:
            self.directions[group.layers] = query_directions(group.query_gram).cpu()

    def _measure(self, rows: Rows, lane: int, cache: LaneCache, known: Event) -> None:
        self._usage[lane], self.remarks[lane] = usage_of(cache, self.model.shape)
        known.wait()
        assert self.truth is not None
        self.errors[lane] = cache_errors(rows, lane + 1, self.truth)
        if lane < self.extent.drawn:  # the noise floor is a number to compare with, not a picture
            self._at_end[lane] = self._of_row(rows, lane + 1)

    def _of_row(self, rows: Rows, row: int) -> dict[str, Tensor]:
        whole, centred = self._key_grams(rows, row)
        directions = query_directions(whole)
        found = self._quantiles(rows, row)
        found["centred_key"] = eigenvalues(centred).sqrt().float()
        found["angles_query_key"] = principal_angles(self.directions, directions, RANKS)
        found["angles_key_key"] = principal_angles(self._true_keys, directions, RANKS)
        return found

    def _truth(self, rows: Rows) -> ReferenceCache:
        steps, held, newest = self.attention.captured_steps, len(self.prefill.ids), self.last_queries()[:, :, None]
        queries = torch.cat([self.tap.queries[:, :, steps] if steps else newest, newest], 2)
        seen = torch.tensor([*(held + step + 1 for step in steps or [-1]), rows.tokens])
        places = {layer: rows.place[layer] for group in self._groups for layer in group.layers}
        scoring = self.model.scoring
        return ReferenceCache.of(rows, places, self.directions, scoring, queries, seen, self.attention.depths)

    def last_queries(self) -> Tensor:
        """The reference's newest queries (layers, query_heads, head_dim): of the last scored step, or of the prompt."""
        if self.tap.step:
            return self.tap.queries[:, :, self.tap.step - 1]
        queries = torch.zeros(self.extent.layers, self.extent.query_heads, self.extent.head_dim)
        for group in self._groups:
            queries[group.layers] = group.queries[:, :, -1].cpu()
        return queries

    def _key(self, rows: Rows, row: int, layer: int) -> tuple[Tensor, Tensor]:
        """A row's keys of a model layer, of the prompt alone and all of them: (kv_heads, tokens, head_dim)."""
        keys = rows.working(row, *self._place(rows, layer))
        return keys[:, : len(self.prefill.ids)], keys

    @staticmethod
    def _place(rows: Rows, layer: int) -> tuple[int, str, int]:
        group, at = rows.place[layer]
        return group, "key", at

    def _key_grams(self, rows: Rows, row: int) -> tuple[Tensor, Tensor]:
        """KᵀK of all keys a row reads after RoPE, as they are and less their mean: (layers, kv_heads, d, d) float64."""
        sizes = self.extent.layers, self.model.shape.kv_heads, self.extent.head_dim
        whole, mean = (torch.zeros(*sizes[: 2 + more], sizes[2], dtype=torch.float64) for more in (1, 0))
        for layer in self.extent.looked:
            x = self._key(rows, row, layer)[1].double()
            whole[layer], mean[layer] = x.transpose(-1, -2) @ x, x.mean(-2)
        return whole, whole - rows.tokens * mean[..., :, None] * mean[..., None, :]

    def _quantiles(self, rows: Rows, row: int) -> dict[str, Tensor]:
        found = [basis.quantiles(self._key(rows, row, layer)[0]) for layer, basis in self._bases.items()]
        own, latent = (torch.stack(parts) for parts in zip(*found, strict=True))
        return {"key_quantiles": own, "latent_quantiles": latent}

    def run_arrays(self) -> dict[str, Tensor]:
        """Arrays of the prompt and the reference, named as in the record."""
        at_end = self._at_end[-1]
        arrays = self._of_prompt | {f"spectra/{name}": at_end[name] for name in ("key_quantiles", "latent_quantiles")}
        arrays["subspace/angles_query_key"] = at_end["angles_query_key"].half()
        assert self.truth is not None
        arrays |= {f"reference/{kind}_channel_energy": energy for kind, energy in self.truth.energy.items()}
        return arrays | {f"reference/{name}": values for name, values in self.attention.of_reference().items()}

    def _read_prompt(self, others: dict[str, Tensor], known: Event) -> None:
        """Spectra of the prompt's keys and values, and how far its queries lie from each subspace."""
        found: dict[str, list[Tensor]] = {}
        kv_heads = self.model.shape.kv_heads
        for group in self._groups:
            for name, values in spectra(group, self.rope).items():
                found.setdefault(name, []).append(values)
        known.wait()
        for group in self._groups:
            own = self.tap.queries[group.layers, :, : self.tap.step].to(group.device)
            subspaces = {"prompt": self.directions[group.layers]}
            subspaces["all"] = query_directions(group.query_gram + query_gram(own, kv_heads))
            subspaces |= {kind: basis[group.layers] for kind, basis in others.items()}
            stacked = (
                thin(stack_queries(torch.cat(pair, 1)[None], kv_heads)[0], QUERIES)
                for pair in zip(group.queries, own, strict=True)
            )
            measured = deviations(stacked, *(s.to(group.device) for s in subspaces.values()))
            for name, deviation in zip(subspaces, measured, strict=True):
                found.setdefault(f"subspace/deviation_{name}", []).append(deviation)
        # groups follow the layers' order on their devices; put them back in the model's order
        order = torch.tensor([layer for group in self._groups for layer in group.layers])
        self._of_prompt = {name: self._by_layer(torch.cat(values), order) for name, values in found.items()}
        self._of_prompt |= key_pairs(self._groups, self.rope, self.extent.layers)

    def _by_layer(self, values: Tensor, order: Tensor) -> Tensor:
        """Values (layers looked at, ...) of the layers in ``order`` among those of all; the others are 0."""
        whole = values.new_zeros(self.extent.layers, *values.shape[1:])
        whole[order] = values
        return whole

    def lane_arrays(self, lane: int) -> dict[str, Tensor]:
        """Arrays of a forced row, named as in the record."""
        scored = slice(0, self.tap.step)
        arrays = {
            "delta_mean": self.tap.mean[lane, ..., scored].half(),
            "delta_max": self.tap.max[lane, ..., scored].half(),
            "delta_offset": self.tap.offset[lane, ..., scored].half(),
        }
        if lane < self.tap.map.shape[0]:
            arrays["delta_map"], arrays["delta_scale"] = self.tap.int8_map(lane)
        arrays |= self.attention.of_lane(lane)
        if lane in self.errors:
            errors = self.errors[lane]
            arrays |= {"key_error": errors.key, "value_error": errors.value, "key_error_energy": errors.energy}
            arrays |= {f"{kind}_channel_error": error for kind, error in errors.channel.items()}
            arrays |= {f"depth_{kind}_error": error for kind, error in errors.depth.items()}
            arrays |= {"output_error": errors.output, "output_relative": errors.output_relative}
            arrays["value_weighted"] = errors.value_weighted
            if errors.bound is not None:
                arrays["output_bound"] = errors.bound
        at_end = self._at_end.get(lane, {})
        arrays |= self._usage.get(lane, {})
        return arrays | {name: x.half() if name.startswith("angles") else x for name, x in at_end.items()}
