"""One sentence a view, generated from the record: what the measurement means here."""

from kvq_core.analysis.blank import blank_layers, none_looked_at
from kvq_core.analysis.floors import floors
from kvq_core.analysis.verdict import verdict
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import LaneRecord, Record
from ui.figures.base import lanes_with
from ui.figures.spectra import energy, is_centred, mean_share, spectrum
from ui.figures.subspace import inside_share
from ui.html.numbers import bits, join_words, percent, plural, significant

NOTHING = 'This run kept no captures; set capture.detail to "normal" to see them.'
NOT_FITTING = "Captures of this many lanes do not fit into a stored run, so none were kept; compare fewer to see them."


def why_empty(record: Record) -> str:
    """Why a view of captures is empty, but for what was looked at afterwards."""
    looked = sorted({layer for look, _ in record.looks for layer in look.capture.layers})
    if looked:
        named = f"layer {looked[0]} was" if len(looked) == 1 else f"layers {join_words(looked)} were"
        return f"This run kept no captures of its own; {named} looked at afterwards."
    if record.spec.get("capture", {}).get("detail") == "off":
        return NOTHING
    return f"This run has no captures. {blank_layers(record)}" if none_looked_at(record) else NOT_FITTING


def finished_lanes(record: Record) -> list[LaneRecord]:
    return [lane for lane in record.lanes if lane.status == "done"]


def overall(record: Record, arrays: Arrays) -> str:
    """The scorecard in a sentence: best and worst lane, read against the noise floor; why the best one's verdict is not
    the best, where flips or p99 lower it."""
    scored = [(m.kld_mean, lane) for lane in finished_lanes(record) if (m := lane.metrics) and m.kld_mean is not None]
    if not scored:
        return "No lane finished with scored positions; there is nothing to rank."
    ranked = [lane for _, lane in sorted(scored, key=lambda found: found[0])]
    best, worst = ranked[0], ranked[-1]
    sentence = f"{best.label} stays closest to the full-precision cache: mean KLD {_kld(best)} nats at {_size(best)}"
    if worst is not best:
        sentence += f"; {worst.label} moves furthest, {_kld(worst)} nats at {_size(worst)}"
    costs = [significant(m.kld_mean, 2) for lane in floors(record).values() if (m := lane.metrics) and m.kld_mean]
    if costs:
        kernel = f", another kernel {costs[1]}" if len(costs) > 1 else ""
        sentence += f". Rounding the cache to fp16 alone costs {costs[0]}{kernel}: nothing below that is damage"
    lowered = verdict(record, arrays, record.lanes.index(best)).sentence
    return f"{sentence}.{f' {best.label}: {lowered}' if lowered else ''}"


def spectra(record: Record, arrays: Arrays, layer: int) -> str:
    """How many directions hold 90 % of a head's keys, before and after RoPE, and how much is their mean."""
    counts = {}
    for space in ("pre", "post"):
        values = spectrum(arrays, f"key_{space}")
        if values is None:
            return why_empty(record)
        counts[space] = float((energy(values[layer]) < 0.9).sum(-1).mean() + 1)
    before, after = f"{counts['pre']:.0f}", f"{counts['post']:.0f}"
    whose = "what is left of its keys without their mean" if is_centred(arrays) else "its keys' energy, mean included,"
    sentence = (
        f"In layer {layer}, {before} of {record.environment.head_dim} directions of a head hold 90 % of {whose} before "
        f"RoPE and {after} after"
    )
    if counts["post"] > counts["pre"]:
        sentence += ": RoPE spreads keys over more directions, so what is coded before it compresses better"
    share = mean_share(arrays, "key_pre")
    if share is None:
        return sentence + ". This run's version did not take the mean out, which SVDq does not encode."
    sentence += f". The mean, which SVDq stores once, is {percent(share[layer])} of all energy before RoPE."
    return f"{sentence} {blank_layers(record)}".strip()


def subspace(record: Record, arrays: Arrays, rank: int) -> str:
    """Which lane keeps its key error out of the directions queries read."""
    shares = [
        (float(inside_share(spread)[..., min(rank, spread.shape[-1])].mean()), lane)
        for _, lane, spread in lanes_with(record, arrays, "key_error_energy")
        if spread.sum() > 0 and "keys" in lane.quantized
    ]
    if not shares:
        return why_empty(record)
    low, high = min(shares, key=lambda s: s[0]), max(shares, key=lambda s: s[0])
    chance = percent(rank / record.environment.head_dim)
    sentence = (
        f"The prompt's top {plural(rank, 'query direction')} catch {percent(low[0])} of the squared key error of "
        f"{low[1].label}"
    )
    if high[1] is not low[1]:
        sentence += f" and {percent(high[0])} of {high[1].label}'s"
    sentence += f"; an error spread evenly would leave {chance} there. Few queries ever read the rest."
    return f"{sentence} {blank_layers(record)}".strip()


def storage(record: Record) -> str:
    """Effective bits and how much of them is windows."""
    stored = [(lane.memory, lane) for lane in finished_lanes(record) if lane.memory]
    if not stored:
        return "No lane finished; nothing was stored."
    memory, small = min(stored, key=lambda found: found[0].kv_ratio)
    sentence = (
        f"{small.label} stores least: {bits(memory.key_bits)} bits a key element and {bits(memory.value_bits)} a value "
        f"element, {percent(memory.kv_ratio)} of an fp16 cache{' (declared, not counted)' if memory.declared else ''}"
    )
    quantized = memory.key_bits_quantized
    if quantized is not None and memory.key_bits - quantized > 0.05:
        sentence += (
            f". Its quantized keys alone take {bits(quantized)}; the rest is its full-precision window on "
            f"{memory.tokens:,} tokens"
        )
    return sentence + "."


def _kld(lane: LaneRecord) -> str:
    return significant(lane.metrics.kld_mean if lane.metrics else None, 2)


def _size(lane: LaneRecord) -> str:
    return f"{percent(lane.memory.kv_ratio)} of the fp16 size" if lane.memory else "unknown size"
