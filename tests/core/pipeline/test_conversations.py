"""Conversations: earlier turns enter the caches, and later ones read them from there."""

import pytest
import torch

from kvq_core.errors import SpecError
from kvq_core.models import LoadedModel, load
from kvq_core.models.chat_turns import turns
from kvq_core.pipeline.compare import compare_on
from kvq_core.pipeline.prompt import script
from kvq_core.record.events import Finished
from kvq_core.spec import DEFAULT_MODEL, ComparisonSpec, Message, parse_spec
from tests.support.tiny_models import generate, tiny

FIRST = "The harbour keeps its tide tables by hand, and the brass gauge has a paper drum. " * 6
ANSWER = (
    "The tide tables of this harbour are kept by hand, in ink, and the gauge that they are read from is made of brass. "
    "Its drum takes paper, which is changed once a week."
)
TALK = [
    {"role": "user", "content": FIRST + "Who keeps the tables?"},
    {"role": "assistant", "content": ANSWER},
    {"role": "user", "content": "And what is the drum made of? Answer in one sentence."},
]
LANES = [
    {"label": "token", "method": "per_token", "knobs": {"bits": 3, "group_size": 32, "residual_length": 0}},
    {"label": "kivi", "method": "kivi", "knobs": {"bits": 2}},
    {
        "label": "stored",
        "method": "per_token",
        "knobs": {"bits": 4, "group_size": 32, "residual_length": 0},
        "prefill": "64 stored",
    },
    {"label": "half", "method": "fp16"},
    {"label": "before RoPE", "method": "squat", "knobs": {"rope": "pre", "group_size": 32, "residual_length": 32}},
    {"label": "codebooks", "method": "rvq", "knobs": {"entries": 16, "steps": 3}},
]


def spec_of(**changes: object) -> ComparisonSpec:
    given = {"messages": TALK, "max_new_tokens": 12, "ignore_eos": True, "capture": {"detail": "off"}, "lanes": LANES}
    return parse_spec(given | changes)


def run(model: LoadedModel, spec: ComparisonSpec) -> Finished:
    *_, last = compare_on(model, spec)
    assert isinstance(last, Finished)
    return last


@pytest.fixture(scope="module")
def model(smollm) -> LoadedModel:
    """The bundled model's tokenizer and template on a tiny model."""
    return tiny("llama", tokenizer=smollm.tokenizer)


@pytest.fixture(scope="module")
def scored(model) -> Finished:
    return run(model, spec_of(score_turns="all"))


def test_the_reference_answers_as_generate_does_on_the_whole_conversation(model, scored: Finished) -> None:
    reference = scored.record.reference
    ids = model.tokenizer.apply_chat_template(TALK, add_generation_prompt=True)
    ids = list(ids["input_ids"]) if hasattr(ids, "keys") else list(ids)
    assert reference.prompt_token_ids == ids
    assert reference.token_ids == generate(model, ids, 12, ignore_eos=True)


def test_an_unquantized_cache_of_several_turns_answers_as_the_reference(scored: Finished) -> None:
    half = scored.record.lanes[3]
    assert half.metrics is not None and half.metrics.kld_max is not None and half.metrics.kld_max < 1e-4
    assert half.token_ids == scored.record.reference.token_ids
    floor = scored.record.noise_floor.metrics
    assert floor is not None and floor.kld_max is not None and floor.kld_max < 1e-4


def test_a_given_answer_is_scored_as_a_continuation_is(model, scored: Finished) -> None:
    """But for float32 noise of the reference, which reads it at once; lanes' caches are the same."""
    asked = spec_of(messages=None, prompt=TALK[0]["content"], continuation=ANSWER + "<|im_end|>", lanes=LANES)
    alone = run(model, asked)
    segments = script(model, spec_of()).segments
    assert [each.answered for each in segments] == [False, True, False]
    assert alone.record.reference.prompt_token_ids == scored.record.reference.prompt_token_ids[: segments[0].end]
    torch.testing.assert_close(scored.arrays["turns/nll"], alone.arrays["reference/nll"], rtol=0, atol=1e-4)
    for at in range(len(LANES)):
        expected, found = alone.arrays[f"lane/{at}/kld"], scored.arrays[f"lane/{at}/turns_kld"]
        assert len(found) == len(expected) == segments[1].end - segments[1].start - 1
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_all_answers_are_pooled_and_each_has_its_own_figures(scored: Finished) -> None:
    for at in (0, 1):
        metrics = scored.record.lanes[at].metrics
        assert metrics is not None and metrics.kld_mean is not None
        first, last = metrics.turns
        earlier, now = scored.arrays[f"lane/{at}/turns_kld"], scored.arrays[f"lane/{at}/kld"]
        assert (first.n_scored, last.n_scored) == (len(earlier), len(now)) and last.tokens == 12
        assert metrics.n_scored == len(earlier) + len(now)
        assert metrics.kld_mean == pytest.approx(torch.cat([earlier, now]).double().mean().item())
        assert first.kld_mean == pytest.approx(earlier.double().mean().item(), rel=1e-5)
        assert last.kld_mean == pytest.approx(now.double().mean().item(), rel=1e-5)


def test_the_last_answer_alone_is_scored_by_default(model, scored: Finished) -> None:
    last = run(model, spec_of())
    for one, other in zip(last.record.lanes[:2], scored.record.lanes[:2], strict=True):
        assert one.metrics is not None and not one.metrics.turns and one.metrics.n_scored == 11
        assert one.token_ids == other.token_ids
    assert torch.equal(last.arrays["lane/0/kld"], scored.arrays["lane/0/kld"])
    assert not any("turns" in name for name in last.arrays)
    assert last.record.id != scored.record.id


def test_later_turns_read_the_earlier_ones_from_the_quantized_cache(model, scored: Finished) -> None:
    """The same tokens as one prompt, read in full precision, do less damage."""
    lane = scored.record.lanes[1]
    assert any("later turns read the earlier ones from this cache" in note for note in lane.notes)
    text = model.tokenizer.decode(scored.record.reference.prompt_token_ids)
    whole = run(model, spec_of(messages=None, prompt=text, chat=False, lanes=LANES[:2]))
    assert whole.record.reference.prompt_token_ids == scored.record.reference.prompt_token_ids
    assert whole.record.lanes[0].metrics.prompt is None and lane.metrics.prompt is not None
    assert lane.metrics.prompt.kld_mean > 0.01
    assert not torch.equal(whole.arrays["lane/1/kld"], scored.arrays["lane/1/kld"])


def test_lanes_of_chunks_shorter_than_the_first_turn_are_scored_from_after_it(model) -> None:
    """The floors read turns alone: nothing before the second turn can be scored of every row."""
    spec = spec_of(score_turns="all", floors="both", lanes=[{**lane, "prefill": "16 raw"} for lane in LANES[:2]])
    found = run(model, spec)
    first = script(model, spec).segments[0].end
    assert found.arrays["prompt/positions"][0] >= first
    for lane in [*found.record.lanes, found.record.noise_floor, found.record.kernel_floor]:
        assert lane is not None and lane.metrics is not None and len(lane.metrics.turns) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"messages": []}, "none from the user"),
        ({"messages": [{"role": "system", "content": "Be short."}]}, "none from the user"),
        ({"messages": [*TALK, {"role": "system", "content": "x"}, TALK[0]]}, "message 4 is from the system"),
        ({"messages": [{"role": "system", "content": "x"}] * 2 + TALK}, "message 2 is from the system"),
        ({"messages": TALK[:2]}, "nothing to answer"),
        ({"messages": TALK[1:]}, "message 1 is from the assistant, and nothing was said before it"),
        ({"messages": [{"role": "user", "content": " "}]}, "message 1, from the user, is empty"),
        (
            {"messages": [TALK[0], {"role": "assistant", "tool_calls": [{"function": {"name": "tide"}}]}, TALK[2]]},
            "'tide', which is not among tools (none)",
        ),
        ({"messages": [TALK[0], {"role": "tool", "content": "3 m"}]}, "no tool was called"),
        (
            {
                "tools": [{"name": "tide"}],
                "messages": [
                    TALK[0],
                    {"role": "assistant", "tool_calls": [{"id": "call-1", "function": {"name": "tide"}}]},
                    {"role": "tool", "content": "3 m", "tool_call_id": "call-2"},
                ],
            },
            "message 3 answers the call 'call-2'; before it are call-1",
        ),
        ({"tools": [{"name": "tide"}, {"function": {"name": "tide"}}]}, "tools have 'tide' twice"),
        ({"prompt": "Hello"}, "messages and prompt are both given"),
        ({"system": "Be short."}, "messages and system are both given"),
        ({"messages": None, "prompt": "x", "tools": [{"name": "tide"}]}, "tools are given without messages"),
        ({"tools": [{"description": "nameless"}]}, "has no name"),
        ({"messages": None}, "prompt is missing"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
    ],
)
def test_impossible_conversations_are_refused_in_one_line(changes: dict, said: str) -> None:
    with pytest.raises(SpecError) as raised:
        spec_of(**changes)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_an_empty_answer_and_a_last_one_enter_the_caches(model) -> None:
    """Each answer is scored, the empty one by the token that ends it; the model answers once more after the last."""
    talk = [TALK[0], {"role": "assistant", "content": ""}, TALK[2], {"role": "assistant", "content": ANSWER}]
    asked = spec_of(messages=talk, last="context", score_turns="all", lanes=LANES[:2])
    read = script(model, asked)
    assert [each.answered for each in read.segments] == [False, True, False, True, False]
    assert read.segments[1].end - read.segments[1].start == 1
    finished = run(model, asked)
    assert len(finished.record.reference.token_ids) == 12
    assert all(lane.metrics is not None and lane.metrics.kld_mean is not None for lane in finished.record.lanes)


class Template:
    """A tokenizer whose template does as it is told."""

    def __init__(self, put):
        self.apply_chat_template = lambda told, tools, add_generation_prompt, tokenize: (
            put(told, tools) + "A:" * add_generation_prompt
        )


def plain(told, tools):
    return "".join(f"{message['role'][0].upper()}:{message['content']}\n" for message in told)


def test_turns_follow_one_another() -> None:
    found = turns(Template(plain), "tiny", [Message(**message) for message in TALK], ())
    assert "".join(turn.text for turn in found) == plain(TALK, None) + "A:"
    assert [turn.answered for turn in found] == [False, True, False]
    assert found[1].text == ANSWER + "\n"


def shouted(told, tools):
    """Answers get a mark once others follow."""
    last = len(told) - 1
    later = [{**m, "content": m["content"] + "!" * (m["role"] == "assistant" and i < last)} for i, m in enumerate(told)]
    return plain(later, tools)


def without_answers(told, tools):
    return plain([message for message in told if message["role"] != "assistant"], tools)


@pytest.mark.parametrize(
    ("put", "said"),
    [
        (without_answers, "text of message 2"),
        (shouted, "message 2 in another way"),
        (plain, "leaves out the tool 'gauge'"),
    ],
)
def test_templates_that_change_what_was_said_are_refused_with_the_first_difference(put, said) -> None:
    with pytest.raises(SpecError, match=said):
        turns(Template(put), "tiny", [Message(**message) for message in TALK], [{"name": "gauge"}] * ("gauge" in said))


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (lambda n, message: message["role"] != "system", "text of message 1"),
        (lambda n, message: message["role"] != "tool", "text of message 4"),
        (lambda n, message: n != 1, "text of message 2"),
    ],
)
def test_a_message_that_is_left_out_is_missed_though_its_text_stands_in_another(kept, said) -> None:
    talk = [
        {"role": "system", "content": "Be short"},
        {"role": "user", "content": "Be short: is it 4 at 4?"},
        {"role": "assistant", "content": "I ask."},
        {"role": "tool", "content": "4"},
        {"role": "user", "content": "Be short: is it 4 at 4?"},
    ]

    def put(told, tools):
        return plain([message for n, message in enumerate(told) if kept(n, message)], tools)

    with pytest.raises(SpecError, match=said):
        turns(Template(put), "tiny", [Message(**message) for message in talk], ())
    assert turns(Template(plain), "tiny", [Message(**message) for message in talk], ())


def test_a_system_message_that_is_written_as_the_users_is_refused() -> None:
    def put(told, tools):
        return plain([{**m, "role": "user" if m["role"] == "system" else m["role"]} for m in told], tools)

    talk = [{"role": "system", "content": "Be short"}, *TALK]
    with pytest.raises(SpecError, match=r"writes message 1 \(system\) as the user's"):
        turns(Template(put), "tiny", [Message(**message) for message in talk], ())


def test_the_bundled_template_knows_no_tools(smollm) -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "tide", "arguments": {}}}]}
    talk = [TALK[0], call, {"role": "tool", "content": "3 m"}]
    spec = spec_of(messages=talk, tools=[{"type": "function", "function": {"name": "tide"}}])
    with pytest.raises(SpecError, match="leaves out the tool call of message 2"):
        script(smollm, spec)
    assert spec.model == DEFAULT_MODEL and spec.question == TALK[0]["content"]


@pytest.mark.slow
def test_tools_reach_a_model_whose_template_knows_them(second_model) -> None:
    model = load(second_model)
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "tide", "arguments": {"port": "Ostend"}}}]}
    talk = [TALK[0], call, {"role": "tool", "content": "3.14 m"}]
    spec = spec_of(messages=talk, tools=[{"type": "function", "function": {"name": "tide"}}], model=second_model)
    read = script(model, spec)
    assert [each.answered for each in read.segments] == [False, True, False]
    answered = model.tokenizer.decode(read.ids[read.segments[1].start : read.segments[1].end])
    assert '"tide"' in answered and "Ostend" in answered and answered.endswith("<|im_end|>")
    assert "3.14 m" in model.tokenizer.decode(read.ids[read.segments[2].start :])
