"""What is known of a model before any run, as markup: one line of what a look found and of what fits, and behind it the
layers, the remedies and the formats."""

from kvq_core.inspection.report import FormatBytes, Inspection, LayerFacts, LayerFigures, Remedy, spans
from kvq_core.inspection.rules import rules
from kvq_core.sizing.fit import Fit, FormatFit
from ui.html.escape import safe
from ui.html.numbers import ABSENT, plural, significant, size

MEMORY = 24  # GB, of the GPU that the longest contexts are told for


NOT_YET = "Not looked at yet"
A_LOOK = "A look takes seconds and tells which layers are at risk before anything is run."
LOOK = '<button type="button" class="plain-button" data-look>Look at this model</button>'


def look_html(found: Inspection | None, fits: Fit | None = None, again: bool = False, mend: str = "") -> str:
    """The line under the model, with a disclosure; ``again``: whether it can be looked at now, for more is to be
    found; ``mend``: how its file is mended, where that is offered."""
    said = [_sentence(found, again), *([fit_words(fits)] if fits is not None else [])]
    tone = "risk" if found is not None and found.at_risk_layers else "muted"
    parts = [f"<p>{A_LOOK}</p>{LOOK}" if again else ""]
    if found is not None:
        parts += [_facts(found), _layers(found), _remedies(found), mend]
    if fits is not None:
        parts.append(fit_table(fits))
    if found is not None:
        parts += [_formats(found), _published(found)]
    line = safe(" ".join(filter(None, said)))
    if not any(parts):
        return f'<p class="muted look">{line}</p>' if line else ""
    return f'<details class="about look"><summary class="{tone}">{line}</summary>{"".join(parts)}</details>'


def _sentence(found: Inspection | None, again: bool) -> str:
    if found is not None:
        return found.sentence
    return f"{NOT_YET}." if again else ""


def _facts(found: Inspection) -> str:
    facts = found.facts
    rope = facts.rope if facts.rope_base is None else f"{facts.rope}, base {facts.rope_base:,.0f}"
    bias = "none" if facts.usual_bias is None else f"median norm {significant(facts.usual_bias, 2)}"
    normed = any(layer.key_norm_gain is not None for layer in facts.layers)
    rows = {
        "Layers": f"{len(facts.layers)}",
        "Heads": f"{facts.query_heads} query, {facts.kv_heads} KV (GQA {facts.query_groups})",
        "head_dim": f"{facts.head_dim}",
        "RoPE": rope,
        "Key projection": f"bias: {bias}; norm: {'yes' if normed else 'none'}",
        "A token in fp16": size(facts.token_bytes),
        "Context": f"{facts.context:,} tokens",
    }
    rows |= {what[0].upper() + what[1:]: f"layers {spans(layers)}" for what, layers in facts.unlike.items()}
    cells = "".join(f'<tr><th scope="row">{name}</th><td>{safe(told)}</td></tr>' for name, told in rows.items())
    return f'<table class="plain facts-table"><tbody>{cells}</tbody></table>'


def _layers(found: Inspection) -> str:
    """A bar a layer: how far keys per token at 4 bits move its scores."""
    if not found.figures:
        return ""
    limit = rules().score_error.value
    most = max(2 * limit, *(layer.score_error for layer in found.figures))
    risks, facts = found.at_risk_layers, found.facts.layers
    bars = "".join(_bar(facts[own.layer], own, most, own.layer in risks) for own in found.figures)
    said = "; ".join(f"layer {layer.layer}: {significant(layer.score_error, 2)}" for layer in found.figures)
    return (
        "<h3>Layers</h3><p>What keys per token at 4 bits do to each layer's attention scores, in nats. From the line "
        "upwards a layer is at risk.</p>"
        f'<div class="layer-bars" role="img" aria-label="{safe(said)}"><i style="bottom:{_height(limit, most)}%"></i>'
        f"{bars}</div><p class='muted axis'><span>layer 0</span><span>largest {significant(most, 2)} nats, root scale"
        f"</span><span>layer {len(found.figures) - 1}</span></p>"
    )


def _bar(facts: LayerFacts, layer: LayerFigures, most: float, at_risk: bool) -> str:
    told = [f"layer {layer.layer}: {significant(layer.score_error, 2)} nats"]
    if layer.centred_score_error is not None:
        told.append(f"centred {significant(layer.centred_score_error, 2)}")
    told.append(f"key channels up to {significant(layer.key_outliers, 2)} times the median one")
    told.append(f"effective rank of keys {layer.key_rank:.0f}, of values {layer.value_rank:.0f}")
    told.append(f"{layer.first_tokens:.0%} of the attention on the first tokens")
    for name, value in (("norm of the key bias", facts.key_bias), ("gain of the norm on keys", facts.key_norm_gain)):
        told += [] if value is None else [f"{name} {significant(value, 3)}"]
    kind = ' class="risk"' if at_risk else ""
    return f'<b{kind} style="height:{_height(layer.score_error, most)}%" title="{safe("; ".join(told))}"></b>'


def _height(value: float, most: float) -> int:
    """Percent of the chart, on a root scale: small bars stay visible beside large ones."""
    return round(100 * (value / most) ** 0.5)


def _remedies(found: Inspection) -> str:
    if found.plain_kld is None:
        return ""
    rows = "".join(_remedy(number, each) for number, each in enumerate(found.remedies))
    return (
        f"<h3>Remedies, measured</h3><p>Mean KLD over {plural(found.forced_tokens, 'token')} after {found.tokens}, and "
        f"bytes more for {found.bytes_at:,} tokens. One text: large differences count, small ones do not.</p>"
        f'<ul class="remedies"><li><div>None: keys per token, 4 bits<small>KLD {significant(found.plain_kld, 2)} nats'
        f"</small></div></li>{rows}</ul>"
    )


def _remedy(number: int, each: Remedy) -> str:
    if each.kld is None or each.extra_bytes is None:
        return f"<li><div>{safe(each.name)}<small>not here: {safe(each.refused or '')}</small></div></li>"
    told = f"KLD {significant(each.kld, 2)} nats, {size(each.extra_bytes)} more"
    return (
        f"<li><div>{safe(each.name)}<small>{safe(told)}</small></div>"
        f'<button type="button" class="plain-button" data-remedy="{number}" aria-label="Add lane: {safe(each.name)}">'
        "Add lane</button></li>"
    )


def _formats(found: Inspection) -> str:
    lengths = sorted({tokens for each in found.formats for tokens in each.nbytes})
    head = "".join(f'<th scope="col">{tokens // 1024}K</th>' for tokens in lengths)
    rows = "".join(_format(each, lengths) for each in found.formats)
    return (
        "<details><summary>Bytes of every format, by tokens</summary>"
        f'<div class="scroll" tabindex="0"><table class="plain"><thead><tr><th scope="col">At its defaults</th>{head}'
        f"</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _format(each: FormatBytes, lengths: list[int]) -> str:
    cells = "".join(f"<td>{size(each.nbytes[n]) if n in each.nbytes else ABSENT}</td>" for n in lengths)
    told = "; ".join((each.settings if each.why_not is None else f"not here: {each.why_not}", *each.counted))
    return f'<tr><th scope="row" title="{safe(told)}">{safe(each.title)}</th>{cells}</tr>'


def _published(found: Inspection) -> str:
    if not found.published:
        return ""
    said = "".join(f"<li>{safe(each)}</li>" for each in found.published)
    return f"<h3>Published by others, not measured here</h3><ul>{said}</ul>"


def fit_words(found: Fit) -> str:
    """``32K × 8: 6.04 GB in fp16, 1.2 to 3.2 GB in engines' formats``."""
    plain, others = _plain(found), [each.tensors for each in found.formats if each.engines and each.tensors]
    stored = [nbytes for nbytes in others if nbytes < plain]
    said = f"{planned_size(found)}: {size(plain)} in fp16"
    return f"{said}, {size(min(stored))} to {size(max(stored))} quantized" if stored else said


def planned_size(found: Fit) -> str:
    return f"{found.context // 1024}K × {found.batch}"


def fit_table(found: Fit) -> str:
    """Every format that an engine has, the smallest last."""
    known = sorted((each for each in found.formats if each.engines and each.tensors), key=lambda each: -_bytes(each))
    rows = "".join(_row(each) for each in known)
    head = "".join(f'<th scope="col">{name}</th>' for name in (planned_size(found), f"in {MEMORY} GB"))
    said = [
        f"In {MEMORY} GB: the longest context of {found.batch} sequences, in tokens, beside the weights "
        f"({size(found.weights.nbytes)}, {found.weights.how}), at most the model's own; of engines the one that takes "
        "least.",
        *found.warnings,
    ]
    return (
        '<h3>What fits</h3><div class="scroll fits" tabindex="0"><table class="plain"><thead><tr>'
        f'<th scope="col">Format</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f'<p class="muted">{safe(" ".join(said))}</p>'
    )


def _row(each: FormatFit) -> str:
    longest = max((most for row in each.engines if (most := row.contexts[MEMORY]) is not None), default=None)
    cells = (size(each.tensors), ABSENT if longest is None else f"{longest:,}")
    engines = ", ".join(f"{row.engine} {row.word}" for row in each.engines)
    told = "".join(f"<td>{safe(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row" title="{safe(engines)}">{safe(each.name)}</th>{told}</tr>'


def _bytes(each: FormatFit) -> int:
    return each.tensors or 0


def _plain(found: Fit) -> int:
    """Bytes of the first format: unquantized."""
    return _bytes(found.formats[0])
