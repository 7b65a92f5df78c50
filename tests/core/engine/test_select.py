"""A lane's ``select``, through whole models: dense float64 attention with masks worked out apart."""

import pytest
import torch
from torch import Tensor

from kvq_core.engine.cache import LaneCache
from kvq_core.engine.decode import Decode
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.script import Script
from kvq_core.errors import SpecError
from kvq_core.methods import selections
from kvq_core.models.scoring import Scoring
from kvq_core.spec import ComparisonSpec, Lane, parse_lane, parse_spec
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

IDS, STEPS = prompt_ids(70), 9


class Dense:
    """An fp16 cache attended in float64, of which each KV head keeps so many tokens after every pass, by the sums of
    attention or, ``low``, by how often it was below the mean in the last ``recent`` queries."""

    def __init__(self, heavy: int, recent: int, low: bool):
        self.heavy, self.recent, self.low = heavy, recent, low
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.kept: dict[tuple[int, int], list[int]] = {}  # by layer and KV head: positions
        self.rows: dict[tuple[int, int], list[Tensor]] = {}  # every query's attention, heads summed or counted

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        q, k, v = queries[0].double(), keys[0].double(), values[0].double()
        prompt = layer not in self.keys
        if q.shape[1] == 1:  # a prompt's tokens read one another as they are computed
            k, v = k.half().double(), v.half().double()
        if not prompt:
            k, v = torch.cat([self.keys[layer], k], 1), torch.cat([self.values[layer], v], 1)
        out = torch.zeros(q.shape[1], *q.shape[::2], dtype=torch.float64)
        total, groups = k.shape[1], len(q) // len(k)
        for head in range(len(k)):
            place = layer, head
            own = range(total - q.shape[1], total)
            for n, position in enumerate(own):
                if prompt:
                    read = list(range(position + 1))
                else:
                    read = sorted({*self.kept[place], *range(own[0], position + 1)})
                row = torch.zeros(total, dtype=torch.float64)
                for member in range(groups * head, groups * (head + 1)):
                    weights = (k[head, read] @ q[member, n] * how.scaling).softmax(0)
                    out[n, member] = weights @ v[head, read]
                    row[read] += (weights < 1 / len(read)).double() if self.low else weights
                self.rows.setdefault(place, []).append(row)
            self._evict(place, [*(range(total) if prompt else [*self.kept[place], *own])], total)
        self.keys[layer], self.values[layer] = k.half().double(), v.half().double()
        return out[None].float()

    def _evict(self, place: tuple[int, int], held: list[int], total: int) -> None:
        rows = self.rows[place][-self.recent :] if self.low else self.rows[place]
        score = {p: sum(row[p].item() for row in rows if p < len(row)) for p in held}
        old = [p for p in held if p < total - self.recent]
        best = sorted(old, key=lambda p: (score[p] if self.low else -score[p], -p))[: self.heavy]
        self.kept[place] = [*best, *(p for p in held if p >= total - self.recent)]


@pytest.mark.slow
@pytest.mark.few(sample=2)
@pytest.mark.parametrize("by", ["h2o", "scissorhands"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_forced_rows_are_those_of_dense_attention_over_the_kept(name: str, by: str) -> None:
    model, follow = tiny(name), prompt_ids(STEPS + 1, 4)
    lane = Lane(label=by, method=by, knobs={"heavy": 0.2, "recent": 0.1})
    outcome = run_engine(model, IDS, [Lane(label="beside", method="fp16"), lane], STEPS, follow=follow)
    dense = Dense(14, 7, low=by == "scissorhands")
    model.forward(torch.tensor([IDS]), 0, dense)
    expected = [model.forward(torch.tensor([[t]]), at, dense)[0] for at, t in enumerate(follow[:-1], len(IDS))]
    found = outcome.logits()[1][1]
    torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=2e-3)
    assert (found - outcome.logits()[1][0]).abs().max() > 0.1  # and it is not what a lane that reads all gives
    select, at = outcome.decode.states[1].cache.selects[0]  # type: ignore[union-attr]
    kept = select(at, torch.empty(4, 1, 32), len(IDS) + STEPS + 1)[:, :-1]  # by a further step
    assert [{*row.nonzero()[:, 0].tolist()} for row in kept] == [{*dense.kept[0, head]} for head in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["h2o", "scissorhands"])
def test_a_free_row_goes_on_with_what_its_forced_row_kept(by: str) -> None:
    """The text that a lane writes by itself is that of the dense cache fed with its own choices."""
    model = tiny("llama")
    lanes = [Lane(label=label, method=by, knobs={"heavy": 0.15, "recent": 0.1}) for label in ("one", "other")]
    outcome = run_engine(model, IDS, lanes, 14, ignore_eos=True)
    state = outcome.state("one")
    assert state.first_divergence is not None and state.first_divergence < 10
    dense, text = Dense(10, 7, low=by == "scissorhands"), list[int]()
    logits = model.forward(torch.tensor([IDS]), 0, dense)
    for at in range(len(IDS), len(IDS) + 14):
        text.append(int(logits[0, -1].argmax()))
        logits = model.forward(torch.tensor([text[-1:]]), at, dense)
    assert state.token_ids == outcome.state("other").token_ids == text


@pytest.mark.few(sample=1)
@pytest.mark.parametrize("by", ["h2o", "scissorhands"])
def test_later_turns_read_what_is_kept_and_drop_what_is_one_too_many(by: str) -> None:
    """A given answer token by token, the turn after it at once, and then steps."""
    model, follow = tiny("llama"), prompt_ids(5, 4)
    turns = [(IDS, False), (prompt_ids(6, 2), True), (prompt_ids(11, 3), False)]
    read = Script.of_turns(turns)
    prefill = SharedPrefill(model, read.ids, range(70, 87), [70, 76])
    list(prefill.run())
    lanes = (Lane(label="beside", method="per_token"), Lane(label=by, method=by, knobs={"heavy": 0.2, "recent": 0.1}))
    decode = Decode(model, prefill, ComparisonSpec(prompt="-", max_new_tokens=5, lanes=lanes), list(lanes))
    decode.script, decode.follow, decode.total = read, follow, len(follow)
    list(decode.encode())
    list(decode.fill())
    found = [model.head(decode.states[1].prompt_hidden[None])[0]]
    for _ in decode.steps(lambda reference, rows, targets: found.append(rows[1]), None, lambda rows: None):
        pass
    dense = Dense(14, 7, low=by == "scissorhands")
    model.forward(torch.tensor([IDS]), 0, dense)
    pieces = [*([t] for t in turns[1][0]), turns[2][0], *([t] for t in follow[:-1])]
    expected, at = [], len(IDS)
    for piece in pieces:
        expected.append(model.forward(torch.tensor([piece]), at, dense)[0])
        at += len(piece)
    torch.testing.assert_close(torch.cat(found), torch.cat(expected), rtol=0, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["h2o", "scissorhands"])
def test_a_prompt_in_chunks_drops_after_each(by: str) -> None:
    """Budgets are those of the whole prompt; a chunk reads what is kept and itself, and drops what is one too many."""
    model, follow = tiny("llama"), prompt_ids(6, 4)
    knobs = {"heavy": 0.2, "recent": 0.1}
    short = Lane(label="short", method=by, knobs=knobs, prefill="16 raw")
    long = Lane(label="long", method="fp16", select={"by": by, **knobs}, prefill="16 raw first_chunk")
    outcome = run_engine(model, IDS, [short, long], 5, follow=follow)
    dense, at = Dense(14, 7, low=by == "scissorhands"), 0
    pieces = [*(IDS[start : start + 16] for start in range(0, len(IDS), 16)), *([t] for t in follow[:-1])]
    expected = []
    for piece in pieces:
        expected.append(model.forward(torch.tensor([piece]), at, dense)[0])
        at += len(piece)
    found = outcome.logits()[1]
    torch.testing.assert_close(found[0], torch.cat(expected[5:]), rtol=0, atol=2e-3)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-4)
    first = model.head(outcome.state("short").last_hidden[None, None])[0, 0]  # type: ignore[index, union-attr]
    torch.testing.assert_close(first, expected[4][-1], rtol=0, atol=2e-3)
    whole = run_engine(model, IDS, [short.model_copy(update={"prefill": "full"})], 5, follow=follow).logits()[1][0]
    assert (found[0] - whole).abs().max() > 0.05  # chunks matter here


@pytest.mark.parametrize("by", ["shadowkv", "svdq"])
def test_what_chooses_in_decoding_alone_leaves_a_prompt_in_chunks_as_it_is(by: str) -> None:
    select = {"by": by, "budget_tokens": 16, "outlier_chunks": 1, "local_chunks": 1}
    follow = prompt_ids(6, 4)
    given = {
        "all": {"method": "per_token", "prefill": "16 stored"},
        "chosen": {"method": "per_token", "prefill": "16 stored", "select": select},
        "other chunks": {"method": "per_token", "prefill": "9 stored", "select": select},
        "fp16": {"method": "fp16", "prefill": "16 raw", "select": select},
        "whole": {"method": "fp16", "select": select},
    }
    lanes = [Lane.model_validate({"label": name, **lane}) for name, lane in given.items()]
    outcome = run_engine(tiny("llama"), IDS, lanes, 5, follow=follow)
    every, chosen, other, fp16, whole = outcome.logits()[1]
    torch.testing.assert_close(chosen, other, rtol=0, atol=2e-3)  # the result does not depend on the chunk
    torch.testing.assert_close(fp16, whole, rtol=0, atol=2e-3)  # what fp16 computes in chunks is what it is at once
    assert (chosen - every).abs().max() > 0.05
    read = [outcome.state(name).last_hidden for name in ("all", "chosen")]
    torch.testing.assert_close(read[0], read[1], rtol=0, atol=0)
    notes = outcome.state("chosen").cache.notes  # type: ignore[union-attr]
    assert any("a step touches" in note for note in notes)


@pytest.mark.few(sample=1)
@pytest.mark.parametrize(
    "select", [{"by": "h2o"}, {"by": "scissorhands", "heavy": 0.3}, {"by": "shadowkv", "outlier_chunks": 1}]
)
def test_a_lane_beside_others_is_what_it_is_alone(select: dict) -> None:
    """Rows that share a fit, and a cache's free row, do not change what another one keeps."""
    lane = Lane(label="a", method="kivi", knobs={"group_size": 8, "residual_length": 8}, select=select)
    twin = lane.model_copy(update={"label": "b"})
    other = Lane(label="c", method="per_token", select=select)
    alone = run_engine(tiny("llama"), IDS, [lane], STEPS, ignore_eos=True, audit=True)
    several = run_engine(tiny("llama"), IDS, [other, lane, twin], STEPS, ignore_eos=True, audit=True)
    torch.testing.assert_close(alone.logits()[1][0], several.logits()[1][1], rtol=0, atol=1e-4)
    torch.testing.assert_close(several.logits()[1][1], several.logits()[1][2], rtol=0, atol=0)
    assert several.state("a").token_ids == several.state("b").token_ids == alone.state("a").token_ids


@pytest.mark.parametrize("method", ["svdq", "shadowkv"])
def test_the_option_reads_what_the_method_reads(method: str) -> None:
    """Where both store keys as they are, to the last chunk."""
    knobs = {"chunk_size": 8, "budget_tokens": 16, "outlier_chunks": 2, "local_chunks": 1}
    own = {"rank": 64, **knobs} if method == "shadowkv" else {"schedule": [8] * 8, "sparsity": knobs}
    lanes = [
        Lane(label="short", method=method, knobs=own),
        Lane(label="long", method="fp16", select={"by": method, **knobs}),
    ]
    rope, prefill = tiny("llama").rope(len(IDS)), SharedPrefill(tiny("llama"), IDS)
    list(prefill.run())
    caches = [LaneCache.of_prompt(lane, prefill.groups, rope) for lane in lanes]
    queries = torch.randn(4, 1, 32, generator=torch.Generator().manual_seed(1))
    for layer in range(3):
        one, other = (select(at, queries, 75) for select, at in (cache.selects[layer] for cache in caches))
        assert torch.equal(one, other) and 0 < (~one).sum()


def test_several_tokens_scored_at_once_read_the_same_keys() -> None:
    """A chunk drops only after it, so that its figures are near those of single tokens."""
    lane = Lane(label="x", method="h2o", knobs={"heavy": 0.5, "recent": 0.4})
    follow = prompt_ids(13, 4)
    one, three = (
        run_engine(tiny("llama"), IDS, [lane], 12, follow=follow, score_chunk=n).logits()[1][0] for n in (1, 3)
    )
    torch.testing.assert_close(one[0], three[0], rtol=0, atol=1e-4)  # before anything more was dropped
    assert (one - three).square().mean() < 0.1 * one.square().mean()


def test_layers_without_a_rule_read_all() -> None:
    lane = Lane.model_validate({"rules": [{"method": "h2o", "layers": [1]}, {"method": "per_token"}]})
    outcome = run_engine(tiny("llama"), IDS, [lane], 3, ignore_eos=True)
    cache = outcome.decode.states[0].cache
    assert cache is not None and set(cache.selects) == {1} and any(note.startswith("h2o keeps") for note in cache.notes)
    assert lane.selections(range(3)) == [(Lane(method="h2o").build().selection, (1,))]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "kivi", "select": {"by": "snapkv"}}, "by = 'snapkv' is not allowed; give an object such as"),
        ({"method": "kivi", "select": "h2o"}, "by = 'h2o' is not allowed; give an object"),
        (
            {"method": "kivi", "select": {"by": "h2o", "heavy": 2}},
            "heavy = 2 is not allowed; allowed: number from 0 to 1",
        ),
        ({"method": "kivi", "select": {"by": "h2o", "heavy": 0.8, "recent": 0.7}}, "keep 1.5 of the prompt"),
        ({"method": "kivi", "select": {"by": "h2o", "heavy": 0, "recent": 0}}, "more than 0"),
        ({"method": "kivi", "select": {"by": "h2o", "rank": 3}}, "unknown knob 'rank'; allowed: by, heavy, recent"),
        ({"method": "kivi", "select": {"by": "svdq", "chunk_size": 0}}, "chunk_size = 0 is not allowed"),
        ({"method": "h2o", "select": {"by": "h2o"}}, "h2o chooses the keys that are read itself; give one of the two"),
        ({"method": "shadowkv", "select": {"by": "h2o"}}, "shadowkv chooses the keys that are read itself"),
        ({"method": "svdq", "knobs": {"sparsity": {}}, "select": {"by": "svdq"}}, "svdq chooses the keys"),
        ({"rules": [{"method": "h2o", "layers": [0]}, {"method": "kivi"}], "select": {"by": "h2o"}}, "rule 1"),
        ({"rules": [{"method": "kivi", "select": {"by": "h2o"}}]}, "Unknown field 'select'"),
        ({"method": "q8_0", "select": {"by": "h2o"}, "prefill": "deployed"}, "take own_chunk = raw"),
        ({"method": "scissorhands", "prefill": "512 stored"}, "scissorhands drops tokens after each chunk"),
        ({"method": "shadowkv", "prefill": "512"}, "shadowkv chooses among the chunks of a prompt"),
        ({"method": "h2o", "tensors": "keys"}, "leave tensors and tokens out"),
        ({"method": "h2o", "recent_tokens": 4}, "sink_tokens and recent_tokens have no meaning here"),
        ({"method": "h2o", "rotate": "hadamard"}, "quantizes nothing"),
        ({"method": "shadowkv", "center": "mean"}, "ShadowKV decomposes keys as they are"),
    ],
)
def test_what_cannot_be_chosen_is_said_in_one_line(given: dict, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_lane(given, "lane 1")
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_lanes_without_it_keep_their_ids_and_those_with_it_say_no_defaults() -> None:
    lanes: list[dict] = [{"method": "kivi"}, {"method": "svdq", "knobs": {"sparsity": {"budget_tokens": 64}}}]
    plain = parse_spec({"prompt": "Hi", "lanes": lanes})
    assert plain.canonical() == (
        '{"lanes":[{"label":"KIVI","method":"kivi"},{"knobs":{"sparsity":{"budget_tokens":64}},"label":"SVDq",'
        '"method":"svdq"}],"model":"smollm2-135m-instruct-q4_1","prompt":"Hi"}'
    )
    assert parse_spec({"prompt": "Hi", "lanes": [{**lane, "select": None} for lane in lanes]}) == plain
    told = [parse_spec({"prompt": "Hi", "lanes": [{"method": "kivi", "select": {"by": by}}]}) for by in selections()]
    assert len({spec.canonical() for spec in told}) == len(told) == 4
    spelled = {"by": "h2o", "heavy": 0.1, "recent": 0.1}
    assert (
        parse_spec({"prompt": "Hi", "lanes": [{"method": "kivi", "select": spelled}]}).canonical()
        == told[0].canonical()
    )
    assert '"select":{"by":"h2o"}' in told[0].canonical()


def test_a_spec_is_read_back_from_what_it_is_written_as() -> None:
    given = {"method": "kivi", "select": {"by": "shadowkv", "budget_tokens": 32, "outlier_chunks": None}}
    spec = parse_spec({"prompt": "Hi", "lanes": [given]})
    assert ComparisonSpec.model_validate_json(spec.model_dump_json()) == spec
    assert ComparisonSpec.model_validate(spec.model_dump(mode="json", exclude_defaults=True)) == spec
    assert (
        spec.lanes[0].title == "KIVI + shadowkv"
        and "reads shadowkv 32 tokens, 1 outlier chunks" in spec.lanes[0].summary
    )
