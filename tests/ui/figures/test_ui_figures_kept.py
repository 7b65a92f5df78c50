"""Single figures: that they show what the run kept, and nothing where it kept nothing."""

import numpy as np
import pytest
import torch

from kvq_core.analysis.looks import captured_indices
from kvq_core.analysis.plans import shape_of
from kvq_core.analysis.within import fewest
from kvq_core.capture.cache_errors import TOP
from kvq_core.pipeline.examples import packaged_store
from kvq_core.record.subset import part_of
from tests.support.ui_record_factory import LAYERS, make_run
from ui import figures as f
from ui.figures.base import BLANK, heat
from ui.figures.spectra import ranks
from ui.figures.subspace import inside_share, split_errors
from ui.figures.usage import dead_codes
from ui.selection import Selection
from ui.views import attention, damage, spectra, subspace
from ui.views.storage import OWN, _bytes, dead, extrapolation


def test_score_map_shows_the_head_asked_for_in_score_units(run):
    record, arrays = run
    figure = f.score_map(record, arrays, 3, 2)
    scale = figure.layout.meta["scale"]
    for lane in range(3):
        z = figure.data[lane].z
        expected = arrays[f"lane/{lane}/delta_map"][3, 2].float() * arrays[f"lane/{lane}/delta_scale"][3, 2]
        drawn, there = torch.tensor(z).float() * scale, torch.tensor(z) != BLANK
        expected = expected.clamp(-127 * scale, 127 * scale)
        assert z.dtype == "int8" and torch.allclose(drawn[there], expected[there], atol=scale)
    few = record.model_copy(update={"capture": record.capture.model_copy(update={"layers": [2, 9], "heads": [0, 4]})})
    assert captured_indices(few, 9, 4) == (1, 1) and captured_indices(few, 8, 4) is captured_indices(few, 9, 3) is None


@pytest.mark.slow
def test_nothing_is_drawn_where_a_step_cannot_look_yet(run):
    """A query reads the prompt and what was written before it: later positions are blank, not zero."""
    record, arrays = run
    prompt, edges = len(record.reference.prompt_token_ids), record.capture.position_edges
    for step in record.capture.attention_steps:
        figure = f.attention_rows(record, arrays, 3, 2, step)
        there = sum(edge < prompt + step + 1 for edge in edges[:-1])
        assert there < len(edges) - 1 or step > 60
        (trace,) = figure.data
        assert np.asarray(trace.z).shape == (len(trace.y), there) and len(trace.x) == there
        assert trace.x[-1] <= prompt + step + 1
    for centred in (True, False):
        figure = f.score_map(record, arrays, 3, 2, centred=centred)
        for trace in figure.data:
            for row, last in zip(np.asarray(trace.z), record.capture.step_edges[1:], strict=True):
                assert ((row == BLANK) == (np.asarray(edges[:-1]) >= prompt + last)).all()
        assert np.isnan(heat(figure, figure.data[0])).sum() == (np.asarray(figure.data[0].z) == BLANK).sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [2, 20, 63])
@pytest.mark.parametrize("centred", [True, False])
def test_steps_that_an_answer_did_not_take_are_not_drawn(run, tokens, centred):
    """Maps hold room for as many tokens as were asked for: an answer that ends before leaves zeros there."""
    record, arrays = run
    ended = record.reference.model_copy(update={"token_ids": record.reference.token_ids[:tokens]})
    short = {
        name: part[..., : tokens - 1] if name.endswith("delta_offset") else part.clone()
        for name, part in arrays.items()
    }
    edges, read = record.capture.step_edges, len(record.reference.prompt_token_ids) + tokens - 1
    untaken = next((at for at, edge in enumerate(edges[:-1]) if edge >= tokens - 1), None)
    for lane in range(3):
        if untaken is not None:
            short[f"lane/{lane}/delta_map"][:, :, untaken:] = 0
    figure = f.score_map(record.model_copy(update={"reference": ended}), short, 3, 2, centred=centred)
    whole = f.score_map(record, arrays, 3, 2, centred=centred)
    for trace, other in zip(figure.data, whole.data, strict=True):
        rows, columns = np.asarray(trace.z).shape
        assert (len(trace.y), len(trace.x)) == (rows, columns) and trace.y[-1] < tokens - 1 and trace.x[-1] < read
        assert list(trace.y[:-1]) == list(other.y[: rows - 1]) and list(trace.x[:-1]) == list(other.x[: columns - 1])
        assert (np.asarray(trace.z)[-1] != BLANK).all(), "the last token reads all that are there"


@pytest.mark.parametrize("measure", ["relative", "score"])
def test_depth_ends_where_the_answer_did(run, measure):
    record, arrays = run
    ended = record.reference.model_copy(update={"token_ids": record.reference.token_ids[:5]})
    short = f.depth_error(record.model_copy(update={"reference": ended}), arrays, measure)
    whole = f.depth_error(record, arrays, measure)
    read = len(record.reference.prompt_token_ids) + 4
    for trace, other in zip(short.data, whole.data, strict=True):
        assert len(trace.x) == len(trace.y) == sum(edge < read for edge in record.capture.depth_edges[:-1])
        assert len(other.x) == len(record.capture.depth_edges) - 1 > len(trace.x)
        assert trace.x[-1] < read and list(trace.y) == list(other.y[: len(trace.y)])


def test_energy_inside_runs_from_nothing_to_all(run):
    share = inside_share(run[1]["lane/0/key_error_energy"].numpy())
    assert share.shape[-1] == 65 and (share[..., 0] == 0).all() and abs(share[..., -1] - 1).max() < 1e-6
    for _, inside, outside in split_errors(*run, rank=64):
        assert inside > 0 and outside < 1e-6


def test_the_error_inside_is_the_scorecards_at_its_rank():
    for summary in packaged_store().list():
        record, arrays = packaged_store().load(summary.id)
        for lane, inside, outside in split_errors(record, arrays, TOP):
            metrics = record.lanes[lane].metrics
            assert inside == pytest.approx(metrics.in_subspace_error, rel=1e-3)
            assert inside < metrics.key_rmse < inside + outside + 1e-9 or metrics.key_rmse == outside == 0


def test_bit_map_rows_follow_what_the_bits_depend_on(run):
    record, arrays = run
    flat = f.bit_map(record, arrays, "key", "layers", 9)
    assert flat.data[0].z.shape[0] == 1 and flat.data[0].meta["pick"] == {"position": "x"}
    assert {line.x0 for line in flat.layout.shapes} == {len(record.reference.prompt_token_ids) + 9}
    by_layer = {**arrays, "lane/0/key_bits": torch.full((LAYERS, 1, 480, 1), 3.0)}
    mixed = f.bit_map(record, by_layer, "key", "layers", 9)
    assert mixed.data[0].z.shape == (LAYERS, 256) and mixed.data[1].z.shape[0] == 1
    picks = [trace.meta["pick"] for trace in mixed.data[:2]]  # a row that stands for all layers selects none
    assert picks == [{"position": "x", "layer": "y"}, {"position": "x"}]


def test_codebooks_count_less_in_a_longer_context(run):
    record = run[0].model_copy(deep=True)
    record.lanes[1].memory.shared_bytes = 1_000_000
    curves = {
        trace.name: dict(zip(trace.x.tolist(), trace.y.tolist(), strict=True))
        for trace in f.bits_by_length(record).data
    }
    elements = 2 * 30 * 3 * 64
    for n, bits in curves["Lane 1, codebooks counted"].items():
        assert bits - curves["Lane 1"][n] == pytest.approx(8e6 / elements / n, abs=2e-3)
    assert "Lane 0, codebooks counted" not in curves


def test_a_lane_that_cannot_be_built_any_more_has_no_curve(run):
    record = run[0].model_copy(deep=True)
    record.spec["lanes"][0]["knobs"] = {"gone": 3}
    assert [trace.name for trace in f.bits_by_length(record).data] == ["Lane 1", "Lane 2"]
    assert "<td>–</td>" in extrapolation(record, "This model", 1000, 1)


def test_ticks_are_those_of_lanes_and_gaussian_curve_together(run):
    record, arrays = run
    low, high = 1e-4, 0.5  # far below the lanes' errors, over several decades
    curve = {"gaussian/bits": torch.linspace(0, 16, 9), "gaussian/key_error": torch.logspace(-0.3, -4, 9)}
    figure = f.distortion_rate(record, {**arrays, **curve}, "key")
    drawn = [value for trace in figure.data for value in trace.y]
    shown = [tick for tick in figure.layout.yaxis.tickvals if min(drawn) <= tick <= max(drawn)]
    assert 100 * low < min(drawn) < max(drawn) <= 100 * high and 2 <= len(shown) <= 9


def test_effective_rank_counts_equal_directions():
    import numpy as np

    assert ranks(np.array([[1.0, 1, 1, 0], [5, 0, 0, 0]])).tolist() == pytest.approx([3, 1])


def test_spectra_are_those_without_the_mean_and_say_so(run):
    """The basis of SVDq beside them is centred; the mean has a figure and a sentence of its own."""
    record, arrays = run
    mean, rest = (arrays[f"{what}/key_pre"].double().square() for what in ("mean", "centred"))
    share = 100 * mean.sum(1) / (mean.sum(1) + rest.sum((1, 2)))
    drawn = {trace.name: trace.y for trace in f.mean_shares(record, arrays, 3).data}
    assert set(drawn) == {"keys before RoPE", "keys after RoPE", "values"}
    assert drawn["keys before RoPE"] == pytest.approx(share.numpy(), abs=0.01)
    page = spectra.compute(record, arrays, Selection(3, 1, 9), "key")
    held = (rest[3].cumsum(-1) / rest[3].sum(-1, keepdim=True) < 0.9).sum(-1).double().mean() + 1
    assert (
        f"{held:.0f} of 64 directions of a head hold 90 % of what is left of its keys without their mean" in page.words
    )
    assert f"stores once, is {share[3]:.0f} % of all energy" in page.words and "head-spectra" not in page.titles
    top = [trace.y[0] for trace in page.figures["head-spectra"].data if trace.name == "before RoPE"]
    largest = max(arrays[f"centred/key_{space}"][3].max() for space in ("pre", "post"))
    assert top == pytest.approx((arrays["centred/key_pre"][3, :, 0] / largest).tolist())


@pytest.mark.slow
def test_spectra_of_an_older_run_are_not_called_centred(run):
    record, arrays = run
    old = {name: x for name, x in arrays.items() if not name.startswith("mean/")}
    for name in list(old):
        if name.startswith("centred/") or name.endswith("/centred_key"):
            old[name.replace("centred/", "spectra/").replace("centred_key", "spectrum_key")] = old.pop(name)
    page = spectra.compute(record, old, Selection(3, 1, 9), "key")
    five = ("head-spectra", "joint-spectra", "energy", "ranks", "lane-spectra")
    assert all("mean included" in page.titles[name] for name in five)
    for name in five:
        named = [trace.name for trace in page.figures[name].data if trace.name and not trace.name.startswith("bits")]
        assert named and all("mean included" in told for told in named), name
    assert page.figures["means"] == spectra.MISSING and "mean included" in page.words
    assert "did not take the mean out" in page.words


def test_dead_codes_are_counted_and_said(run):
    record, arrays = run
    counts = torch.ones(LAYERS, 3, 2, 10)
    counts[..., :3] = 0
    counts[0] = 0  # a layer that is left alone
    held = {**arrays, "lane/1/key_code_counts": counts}
    assert dead_codes(held, 1, "key") == pytest.approx(0.3) and dead_codes({}, 1, "key") is None
    assert "Lane 1 30.0 %" in dead(record, held, "key") and dead(record, {}, "key") == ""


@pytest.mark.slow
def test_what_was_not_kept_of_a_place_is_not_drawn_and_offered(run):
    record, arrays = run
    kept = {"layers": [2, 9], "heads": [0, 4], "distribution_layers": [9], "angle_ranks": [5]}
    few = record.model_copy(update={"capture": record.capture.model_copy(update=kept)})
    drawn = damage.compute(few, arrays, Selection(8, 3, 9), "relative", False)
    assert drawn.figures["score-map"] == "Layer 8, query head 3 was not kept in this run."
    offered = drawn.html["look-maps"]
    assert "Compute layer 8, every head and step" in offered and 'data-act="map"' in offered
    at = Selection(9, 4, 11)
    at_steps = [damage.compute(few, arrays, Selection(9, 4, token), "relative", False).html for token in (9, 11)]
    assert "attention at token" not in at_steps[0]["look-maps"]
    assert "attention at token 11" in at_steps[1]["look-maps"]
    drawn = spectra.compute(few, arrays, Selection(8, 3, 9), "key")
    assert drawn.figures["key-channels"] == "The keys of layer 8 were not kept in this run." and drawn.html["look-keys"]
    assert spectra.compute(few, arrays, Selection(9, 3, 9), "key").html["look-keys"] == ""
    assert "at token 11 was not kept" in damage.compute(few, arrays, at, "relative", False).figures["attention-rows"]
    drawn = subspace.compute(few, arrays, Selection(8, 3, 9), 20)
    assert drawn.figures["angles-key"] == "Angles at rank 20 were not kept: of this run rank 5 is."
    assert "Compute layer 8" in drawn.html["look-angles"]
    kept = subspace.compute(few, arrays, Selection(8, 3, 9), 5)
    assert kept.html["look-angles"] == "" and not isinstance(kept.figures["angles-key"], str)
    drawn = attention.compute(few, arrays, Selection(8, 3, 9))
    assert "Attention of layer 8, query head 3 was not kept" in drawn.words and "layer 8" in drawn.html["look-words"]
    assert '"steps":[]' in drawn.html["words-read"]
    drawn = attention.compute(few, arrays, Selection(9, 4, 9))
    assert "Compute attention at every token" in drawn.html["look-words"] and "looked at in 8 of 63" in drawn.words


def test_the_prompts_figure_has_the_lanes_that_read_it_through_their_caches():
    record, arrays = make_run(3)
    assert f.prompt_kld(record, arrays) is None
    g = torch.Generator().manual_seed(3)
    scored = {f"lane/{i}/prompt_kld": torch.rand(400, generator=g) * 10**-i for i in (0, 2)}
    arrays = {**arrays, "prompt/positions": torch.arange(64, 464, dtype=torch.int32), **scored}
    figure = f.prompt_kld(record, arrays)
    assert [trace.name for trace in figure.data] == [record.lanes[i].label for i in (0, 2)]
    for trace, kld in zip(figure.data, scored.values(), strict=True):
        assert len(trace.x) == len(trace.y) == 120 and 64 <= trace.x[0] < trace.x[-1] <= 463
        assert np.mean(trace.y) == pytest.approx(kld.mean().item(), rel=0.02)
        assert f"worst {kld[:4].max():.3g} at {64 + int(kld[:4].argmax())}" in trace.text[0]
    assert figure.layout.yaxis.type == "log"


@pytest.mark.slow
def test_lanes_that_are_a_grid_are_drawn_as_one():
    kinds = [("kivi", 4), ("kivi", 2), ("per_token", 4)]
    lanes = [
        {
            "label": f"{i}{j}",
            "rules": [
                {"method": key, "tensors": "keys", "knobs": {"bits": width}},
                {"method": value, "tensors": "values", "knobs": {"bits": other}},
            ],
        }
        for i, (key, width) in enumerate(kinds)
        for j, (value, other) in enumerate(kinds)
    ]
    record, _ = make_run(9)
    assert f.format_grid(record) is None  # one method for both, each another one
    for number, lane in enumerate(record.lanes):
        lane.memory = lane.memory.model_copy(update={"key_bits": 9.0 - number // 3, "value_bits": 9.0 - number % 3})
    record.spec = {**record.spec, "lanes": lanes}
    figure = f.format_grid(record)
    (cells,) = figure.data
    assert list(cells.y) == ["K kivi 4", "K kivi 2", "K per_token 4"]
    assert list(cells.x) == ["V kivi 4", "V kivi 2", "V per_token 4"]
    expected = np.log10([lane.metrics.kld_mean for lane in record.lanes]).reshape(3, 3)
    np.testing.assert_allclose(np.asarray(cells.z, float), expected, rtol=1e-5)
    part, _ = part_of(record, {}, [0, 1, 4])
    assert len(part.lanes) == 3
    assert len(f.format_grid(part.whole).data[0].z) == 3  # a run of many lanes shows its grid whole
    assert fewest(record) == {}  # keys of one method and values of another are of no family
    record.lanes.pop()
    assert np.isnan(np.asarray(f.format_grid(record).data[0].z, float)).sum() == 1


def test_a_model_with_windows_is_counted_by_what_its_layers_need(run):
    """Layers of full attention grow with the context, windows do not: in the fp16 cache as in every lane's."""
    record, shape = run[0], shape_of(run[0])
    window = shape.kinds[0].model_copy(update={"kind": "sliding", "window": 64})
    kinds = [window.model_dump(), *(kind.model_dump() for kind in shape.kinds[1:])]
    record = record.model_copy(update={"environment": record.environment.model_copy(update={"kinds": kinds})})
    a_token = 2 * shape.kinds[0].elements
    full, lanes = _bytes(record, OWN, 10_000, 3)
    assert full == 3 * a_token * (64 + 10_000 * (shape.layers - 1))
    assert all(taken is not None and taken < full for taken in lanes.values())
