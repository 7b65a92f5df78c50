"""The answer cards: heads with four numbers, tokens, KLD strips; while a run streams and when it is done."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from kvq_core.analysis.expected import contains_answer, expectation
from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import LaneRecord, Record
from kvq_core.spec import subtitle
from ui.html.escape import lane_tokens, numbered_tokens, prose, safe, shorten, strip, visible
from ui.html.glossary import hint
from ui.html.numbers import ABSENT, both_bits, percent, plural, significant
from ui.html.pieces import spans_of, words_at
from ui.html.verdict import cautions, near_ties_html, verdict

MAX_TITLED = 1200  # tokens of a run that carry their top-5 lists; about 300 KB
Stat = tuple[str, str]
EXPLAINED = {"K / V bits": "bits", "size": "bytes", "KLD": "KLD", "flips": "flips"}  # numbers by their glossary's words
NUMBERS = {"K / V bits": "bits", "size": "size", "KLD": "kld", "flips": "flips"}  # as js/along.js names them
STREAMING: tuple[Stat, ...] = (("K / V bits", "…"), ("size", "…"))


def cards(*parts: tuple[str, str, str], numbers: Sequence[int] = ()) -> str:
    """Head, tokens and KLD strip of the reference and of every lane, as one piece of HTML: see ``view.ViewPage``.
    ``numbers``: of the lanes in the whole run, where these are some of them."""
    kinds = ["reference", *(f"lane-{number}" for number in numbers or range(len(parts)))]
    shown = (
        f'<div class="card answer {kinds[at]}" id="card-{at}"{_of(at)}><div>{top}</div>'
        f'<div class="prose tokens" tabindex="0">{body}</div>{_strip(bars) if at else ""}</div>'
        for at, (top, body, bars) in enumerate(parts)
    )
    return f'<div class="cards">{"".join(shown)}</div>'


def _strip(bars: str) -> str:
    return f'<div class="prose strip">{bars}</div>'


def _of(card: int) -> str:
    """Whose a card is, for the legend; the reference's is no lane's."""
    return f' data-of="{card - 1}"' if card else ""


def head(
    label: str,
    subtitle: str,
    badge: tuple[str, str, str],
    stats: Sequence[Stat],
    said: Sequence[str] = (),
    notes: Sequence[str] = (),
    answered: str = "",
    last: str = "",
) -> str:
    """Title, badge (word, tone, explanation), numbers, what is said of them, and the method's notes, folded;
    ``answered`` as ``tick`` gives it, ``last`` as ``near_ties_html``."""
    word, tone, why = badge
    cells = "".join(f"<div>{_named(name)}<b{_number(name)}>{safe(value)}</b></div>" for name, value in stats)
    told = "".join(f"<p class='remark'>{prose(sentence)}</p>" for sentence in said) + last
    if notes:
        folded = "".join(f"<p class='remark'>{prose(note)}</p>" for note in notes)
        told += (
            f"<details><summary class='remark'>{plural(len(notes), 'note')} of the method</summary>{folded}</details>"
        )
    badge_of = f'class="badge {tone}" data-number="verdict" title="{safe(why)}"'
    mark = f"<span {badge_of}>{safe(word)}</span>" if word else ""
    return (
        f'<div class="top"><h3>{safe(label)}</h3>{answered}{mark}</div><p class="sub">{safe(subtitle)}</p>'
        f'<div class="stats">{cells}</div>{told}'
    )


def _number(stat: str) -> str:
    """What js/along.js writes anew there while some tokens are brushed."""
    return f' data-number="{NUMBERS[stat]}"' if stat in NUMBERS else ""


def _named(stat: str) -> str:
    return hint(EXPLAINED[stat], stat) if stat in EXPLAINED else f"<span>{safe(stat)}</span>"


def tick(record: Record, answer: str) -> str:
    """A tick where an answer says what the run expects, else a cross; nothing where nothing is expected."""
    if not (expected := expectation(record)):
        return ""
    right = contains_answer(answer, expected)
    why = f"The answer {'holds' if right else 'does not hold'} what is expected: “{expected}”"
    mark, tone = ("✓", "good") if right else ("✗", "bad")
    return (
        f'<span class="badge {tone} expected" title="{safe(why)}" aria-label="{safe(why)}" role="img">{mark} '
        f"{safe(shorten(expected, 16))}</span>"
    )


def failed_card(label: str, subtitle: str, error: str) -> str:
    """A lane that could not run; the others went on."""
    return (
        f'<div class="top"><h3>{safe(label)}</h3><span class="badge bad">failed</span></div>'
        f'<p class="sub">{safe(subtitle)}</p><p class="error">{safe(error)}</p>'
        '<p class="remark">The other lanes are not affected. Change this lane and run again.</p>'
    )


def waiting_head(label: str, subtitle: str, arrived: int = 0) -> str:
    """Before a lane's first token; the reference's, which has no subtitle, counts its tokens."""
    stats = (("new tokens", f"{arrived:,}"),) if not subtitle else (*STREAMING, ("KLD", "…"), ("flips", "…"))
    return head(
        label, subtitle or "unquantized cache", ("reference", "quiet", "") if not subtitle else ("", "", ""), stats
    )


def running_head(label: str, subtitle: str, kld: Sequence[float], same_top: Sequence[bool]) -> str:
    """Running means while tokens arrive; bits and size are known at the end."""
    finite = [k for k in kld if math.isfinite(k)]
    mean = sum(finite) / len(finite) if finite else None
    flips = 1 - sum(same_top) / len(same_top) if same_top else None
    return head(label, subtitle, ("", "", ""), (*STREAMING, ("KLD", significant(mean, 2)), ("flips", percent(flips))))


def reference_head(record: Record) -> str:
    env, ref = record.environment, record.reference
    width = {"float32": "32", "float64": "64"}.get(env.dtype.removeprefix("torch."), "16")
    stats = (
        ("K / V bits", f"{width} / {width}"),
        ("prompt", f"{len(ref.prompt_token_ids):,}"),
        ("PPL", significant(ref.ppl)),
        ("new", f"{len(ref.token_ids):,}"),
    )
    kind = f"unquantized {env.dtype.removeprefix('torch.')} cache"
    said = [env.weights_note] if env.weights_note else []
    return head("Full precision", kind, ("reference", "quiet", ""), stats, said, answered=tick(record, ref.text))


def lane_head(record: Record, arrays: Arrays, index: int) -> str:
    """The head of a finished or failed lane; its verdict stands beside the noise floor's numbers."""
    lane = record.lanes[index]
    if lane.status == "failed":
        return failed_card(lane.label, lane.summary or lane.title, lane.error or "")
    found, m, memory = verdict(record, arrays, index), lane.metrics, lane.memory
    stats = (
        ("K / V bits", both_bits(memory.key_bits, memory.value_bits, memory.declared) if memory else ABSENT),
        ("size", percent(memory.kv_ratio) if memory else ABSENT),
        ("KLD", significant(m.kld_mean, 2) if m else ABSENT),
        ("flips", percent(m.flip_rate) if m else ABSENT),
    )
    said = [*filter(None, [found.sentence]), *_agreement(record, lane), *_read(lane), *cautions(lane)]
    return head(
        lane.label,
        settings(lane),
        (found.word, found.tone, found.why),
        stats,
        said,
        lane.notes,
        tick(record, lane.text),
        near_ties_html(lane, "p class='remark'"),
    )


def settings(lane: LaneRecord) -> str:
    """The method's settings in a few words, and what of the cache they are for."""
    return " · ".join([lane.summary, *subtitle(lane).values()])


def _agreement(record: Record, lane: LaneRecord) -> list[str]:
    m = lane.metrics
    if m is None or not lane.token_ids:
        return []
    if record.spec.get("free_text") is False:
        at = m.first_divergence
        said = "it would have chosen the same throughout" if at is None else f"its own choice is another at token {at}"
        return [f"It was fed the reference's tokens and wrote no text of its own; {said}."]
    if m.first_divergence is None:
        return ["Own text equals the reference's."]
    return [f"Own text leaves the reference's after {plural(m.matched_prefix, 'token')}."]


def _read(lane: LaneRecord) -> list[str]:
    """What reading the prompt, or earlier turns, through its own cache did, in figures of their own."""
    m = lane.metrics
    if m is None or m.prompt is None:
        return []
    p = m.prompt
    over = f"over {plural(p.n_scored, 'position')} of the prompt from {p.first_position:,} on"
    said = f"Prompt through its own cache: KLD {significant(p.kld_mean, 2)}, flips {percent(p.flip_rate)} {over}"
    answers = [f"answer {n}: KLD {significant(turn.kld_mean, 2)}" for n, turn in enumerate(m.turns, 1)]
    return [f"{said}; first new token {significant(p.first_token_kld, 2)}.", *(f"{each}." for each in answers)]


def reference_body(record: Record) -> str:
    return numbered_tokens(spans_of(record, record.reference)) or '<span class="none">The answer is empty.</span>'


def lane_body(record: Record, arrays: Arrays, index: int, titled: int = MAX_TITLED) -> str:
    """A finished lane's tokens, coloured; the first of them, ``titled`` in the whole run, with the top-5 of lane and
    reference as their tooltips."""
    lane = record.lanes[index]
    if lane.status == "failed":
        return ""
    kld, same = scores(arrays, index)
    divergence = lane.metrics.first_divergence if lane.metrics else None
    titles = _titles(record, arrays, index, titled // max(1, len(record.lanes)))
    texts = spans_of(record, record.reference), spans_of(record, lane)
    return lane_tokens(*texts, kld, same, divergence, titles)


def lane_strip(arrays: Arrays, index: int) -> str:
    return strip(scores(arrays, index)[0])


def scores(arrays: Arrays, index: int) -> tuple[list[float], list[bool]]:
    """KLD and same-top of every scored position."""
    kld, same = array(arrays, f"lane/{index}/kld"), array(arrays, f"lane/{index}/same_top")
    return ([] if kld is None else kld.tolist()), ([] if same is None else [bool(s) for s in same])


def _titles(record: Record, arrays: Arrays, index: int, limit: int) -> list[str]:
    names = ("reference/topk_ids", "reference/topk_probs", f"lane/{index}/topk_ids", f"lane/{index}/topk_probs")
    ids, probs, lane_ids, lane_probs = (array(arrays, name) for name in names)
    kld = array(arrays, f"lane/{index}/kld")
    if ids is None or probs is None or lane_ids is None or lane_probs is None or kld is None:
        return []
    followed = spans_of(record, record.reference)
    titles = ["token 0: from the shared prefill, not scored"]
    for at in range(min(limit, len(kld))):
        word = words_at(record, at + 1, followed)
        rows = (_top(word, ids[at], probs[at]), _top(word, lane_ids[at], lane_probs[at]))
        titles.append(f"token {at + 1} · KLD {significant(float(kld[at]))}\nreference: {rows[0]}\nlane: {rows[1]}")
    return titles


def _top(word: Callable[[int], str], ids: np.ndarray, probs: np.ndarray) -> str:
    named = zip(ids.astype(int).tolist(), probs.tolist(), strict=True)
    return "  ".join(f"“{visible(word(id))}” {100 * p:.0f} %" for id, p in named)


def finished_cards(record: Record, arrays: Arrays, titled: int = MAX_TITLED) -> str:
    """The cards of a finished run; ``titled`` tokens of them with tooltips, which are most of their size."""
    lanes = [
        (lane_head(record, arrays, i), lane_body(record, arrays, i, titled), lane_strip(arrays, i))
        for i in range(len(record.lanes))
    ]
    numbers = [record.number(i) for i in range(len(record.lanes))]
    return cards((reference_head(record), reference_body(record), ""), *lanes, numbers=numbers)
