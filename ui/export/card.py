"""A run as one picture to post: lanes, their four numbers, and what the numbers are."""

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import LaneRecord, Record
from kvq_core.record.subset import drawn_of
from ui.export.marks import symbol
from ui.html.colors import lane_mark
from ui.html.escape import safe, shorten
from ui.html.numbers import ABSENT, both_bits, percent, plural, significant
from ui.html.tokens import TOKENS, font
from ui.html.verdict import verdict
from ui.words.answer import answer_line

WIDTH, HEIGHT = 1200, 630
INK, MUTE, LINE, GROUND = (TOKENS.light[name] for name in ("ink", "mute", "line", "card"))
TONES = {**{tone: TOKENS.light[tone] for tone in ("good", "warn", "bad")}, "quiet": MUTE}
COLUMNS = (("K / V bits", 560), ("size", 680), ("KLD", 800), ("flips", 910), ("verdict", 1140))
EXPLAINED = (
    "K / V bits: stored bits an element, metadata included. Size: of the fp16 cache. KLD: mean distance of the "
    "next-token distribution, nats. Flips: another most probable token."
)


def title(record: Record) -> str:
    """What was compared, in a line."""
    return f"{record.environment.model_title}: {plural(len(record.lanes), 'quantized KV cache')} against full precision"


def scoring_line(record: Record) -> str:
    """On how many positions, after how long a prompt, and what fp16 rounding alone does."""
    m = record.noise_floor.metrics
    said = (
        f"{len(record.reference.prompt_token_ids):,} prompt tokens, {plural(m.n_scored if m else 0, 'scored position')}"
    )
    if m is None or m.kld_mean is None:
        return said
    other = record.kernel_floor.metrics if record.kernel_floor else None
    kernel = f", another kernel: {significant(other.kld_mean, 2)}" if other else ""
    return f"{said}; noise floor: KLD {significant(m.kld_mean, 2)}{kernel}"


def figures(lane: LaneRecord) -> tuple[str, str, str, str]:
    """Bits, size, KLD and flips of a lane as people read them."""
    m, memory = lane.metrics, lane.memory
    done = lane.status == "done"
    return (
        both_bits(memory.key_bits, memory.value_bits, memory.declared) if done and memory else ABSENT,
        percent(memory.kv_ratio) if done and memory else ABSENT,
        significant(m.kld_mean, 2) if done and m else ABSENT,
        percent(m.flip_rate) if done and m else ABSENT,
    )


def card(record: Record, arrays: Arrays, link: str) -> str:
    """The picture as SVG, 1200 x 630, the size that links are previewed at."""
    few, own = drawn_of(record, arrays)
    step = min(72, 326 // max(1, len(few.lanes)))
    prompt = record.question
    body = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{GROUND}"/>',
        _text(60, 66, title(record), 25, INK, weight=700, limit=70),
        _text(60, 106, answer_line(record, arrays), 21, INK, weight=600, limit=92),
        _text(60, 137, f"“{shorten(prompt, 100)}”", 18, MUTE, limit=104),
        *(_text(x, 166, name, 18, MUTE, "end") for name, x in COLUMNS),
    ]
    for n in range(len(few.lanes)):
        body += _row(few, own, n, 184 + n * step, step)
    words = EXPLAINED.split(" KLD: ")
    body += [
        _text(60, 556, words[0], 16, MUTE, limit=160),
        _text(60, 578, f"KLD: {words[1]}", 16, MUTE, limit=160),
        _text(60, 606, scoring_line(record), 16, INK, limit=120),
        _text(
            1140,
            606,
            link.removeprefix("https://").removeprefix("http://"),
            16,
            TOKENS.light["accent"],
            "end",
            limit=70,
        ),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="{font("sans")}">{"".join(body)}</svg>'
    )


def _row(record: Record, arrays: Arrays, index: int, top: int, step: int) -> list[str]:
    y, lane = top + step // 2 + 8, record.lanes[index]
    found, mark = verdict(record, arrays, index), lane_mark(record.number(index))
    numbers = zip(COLUMNS, figures(lane), strict=False)
    return [
        f'<path d="M60 {top}H1140" stroke="{LINE}"/>',
        symbol(mark.symbol, 67, y - 7, 7.5, mark.color),
        _text(86, y, lane.label, 22, INK, weight=600, limit=30),
        *(_text(x, y, value, 22, INK, "end") for (_, x), value in numbers),
        _text(COLUMNS[-1][1], y, found.word, 22, TONES[found.tone], "end", weight=600, limit=17),
    ]


def _text(
    x: float, y: float, text: str, size: int, ink: str, anchor: str = "start", weight: int = 400, limit: int = 40
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{ink}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{safe(shorten(text, limit))}</text>"
    )


def card_text(record: Record, arrays: Arrays, link: str) -> str:
    """The same to paste: model, lanes, figures, what they are, link."""
    lines = [title(record)]
    few, own = drawn_of(record, arrays)
    for index, lane in enumerate(few.lanes):
        if lane.status == "failed":
            lines.append(f"- {shorten(lane.label, 60)}: failed")
            continue
        width, size, kld, flips = figures(lane)
        word = verdict(few, own, index).word
        lines.append(f"- {shorten(lane.label, 60)}: K/V {width} bits, size {size}, KLD {kld}, flips {flips} ({word})")
    return "\n".join([*lines, scoring_line(record), EXPLAINED, link])
