"""What fits, as markup: a few words for the line under the model, and a table of every format behind it."""

from kvq_core.sizing.fit import Fit, FormatFit
from ui.html.escape import safe
from ui.html.numbers import ABSENT, size

MEMORY = 24  # GB, of the GPU that the longest contexts are told for


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
