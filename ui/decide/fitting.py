"""What fits before anything is run, from the model's configuration alone: shown where an answer will stand."""

from kvq_core.inspection.fits import fit_here
from kvq_core.sizing.fit import MEMORIES, Fit, FitRequest, FormatFit, Reserve
from ui.html.escape import safe
from ui.html.numbers import ABSENT, plural, size
from ui.html.study_tables import table

MOST = 14  # formats that are told


def fitting_html(
    model: str, context: float | None, batch: float | None, engine: str | None, at_once: int | None = None
) -> str:
    """Every format of the engine, of all of them where none is named: of these the one that takes least. Nothing where
    the configuration is not here."""
    if not (context and batch and context >= 1 and batch >= 1):
        return ""
    found = fit_here(model, asked=FitRequest(context=int(context), batch=int(batch), batched_tokens=at_once))
    if found is None:
        return ""
    rows = sorted(_kept(found, engine), key=lambda pair: -(pair[1].reserved or pair[0].tensors or 0))[:MOST]
    if not rows:
        return ""
    head = ("Format", "Engine", "Tensors", "Reserved", *(f"{memory} GB" for memory in MEMORIES))
    body = "".join(_row(each, reserve, found) for each, reserve in rows)
    weights = f"{size(found.weights.nbytes)}, {found.weights.how}"
    said = (
        f"For {plural(found.batch, 'sequence')} of {found.context:,} tokens: bytes of the tensors, and what the engine "
        f"sets aside; then the longest context beside the weights ({weights}), at most the model's own. Nothing was "
        "run; what a format loses, an answer will say."
    )
    warnings = "".join(f'<p class="warning">{safe(each)}</p>' for each in found.warnings)
    return (
        f'<section class="card"><h2 class="figure-title">What fits, from the configuration alone</h2>'
        f'<p class="muted">{safe(said)}</p>{warnings}{table([safe(each) for each in head], [body])}</section>'
    )


def _kept(found: Fit, engine: str | None) -> list[tuple[FormatFit, Reserve]]:
    made = []
    for each in found.formats:
        own = [row for row in each.engines if engine in (None, row.engine)]
        if own and each.tensors is not None:
            made.append((each, min(own, key=lambda row: row.reserved or each.tensors or 0)))
    return made


def _row(each: FormatFit, reserve: Reserve, found: Fit) -> str:
    own = found.own_context or found.context
    cells = "".join(
        f'<td class="fit">{ABSENT}</td>'
        if (tokens := reserve.contexts.get(memory)) is None
        else f'<td class="fit {"enough" if tokens >= min(found.context, own) else "short"}">'
        f"{f'{tokens:,}' if tokens else 'nothing'}</td>"
        for memory in MEMORIES
    )
    held = "not known" if reserve.reserved is None else size(reserve.reserved)
    return (
        f'<tr><th scope="row">{safe(each.name)}</th><td>{safe(reserve.engine)}<small>{safe(reserve.word)}</small></td>'
        f"<td>{size(each.tensors)}</td><td>{held}</td>{cells}</tr>"
    )
