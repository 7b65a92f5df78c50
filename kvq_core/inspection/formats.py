"""Stored bytes of a model's cache in every format, by length."""

from kvq_core.inspection.report import FormatBytes
from kvq_core.methods import methods
from kvq_core.models import LoadedModel
from kvq_core.sizing.count import NotKnown, cache_bytes
from kvq_core.spec import Lane

LENGTHS = (2_048, 8_192, 32_768, 131_072)  # tokens of a context


def formats_of(model: LoadedModel) -> tuple[FormatBytes, ...]:
    """Every method at its defaults.

    Widths that a method reads from the data (QAQ's) are those of random numbers; a run measures them on a prompt's.
    """
    return tuple(_format(model, Lane(method=name)) for name in methods())


def _format(model: LoadedModel, lane: Lane) -> FormatBytes:
    method = lane.build()
    named = {"method": lane.method, "title": method.title, "settings": method.summary()}
    if reason := lane.why_not(model.shape):
        return FormatBytes(**named, nbytes={}, why_not=reason)
    sizes, counted = {}, tuple[str, ...]()
    for tokens in LENGTHS:
        found = cache_bytes(lane, model.shape, tokens, tokens, model=model.ref)
        if isinstance(found, NotKnown):
            return FormatBytes(**named, nbytes={}, why_not=found.reason)
        sizes[tokens], counted = found.tensors, (*found.from_data, *found.learned)
    return FormatBytes(**named, nbytes=sizes, counted=counted)
