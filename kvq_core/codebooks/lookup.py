"""Finding the codebook a lane needs, and saying how to make one that is missing."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvq_core.codebooks.files import DEFAULT_NAME, Codebook, CodebookInfo, Kind, Target, codebooks
from kvq_core.errors import MethodError


@dataclass(frozen=True)
class CodebookNeed:
    """What a lane asks of a codebook, or of what was calibrated. ``pairs`` and ``stages`` None: half a head, and as
    many as make ``bits`` bits."""

    kind: Kind
    name: str | None
    bits: int
    levels: int = 16
    pairs: int | None = None
    stages: int | None = None
    target: Target | None = None  # of rotations: what they are fitted to
    outlier_fraction: float | None = None  # of ranges: what they leave out

    def fits(self, info: CodebookInfo) -> bool:
        if info.kind != self.kind or info.name != (self.name or DEFAULT_NAME):
            return False
        if self.kind != "keys":
            decided = {"target": self.target, "outlier_fraction": self.outlier_fraction}
            return info.bits == self.bits and all(info.settings.get(name) == asked for name, asked in decided.items())
        same = info.levels == self.levels and info.pairs_per_group == (self.pairs or info.head_dim // 2)
        return same and (info.stages or 0) >= self.stages_of(info.head_dim)

    def stages_of(self, head_dim: int) -> int:
        """Stages of keys: the first ones of a longer codebook are those of a shorter one."""
        return self.stages or stages_for(self.bits, self.pairs or head_dim // 2, self.levels)

    def command(self, model: str) -> str:
        """The command line that trains it."""
        words = [f"python -m kvq_core codebooks train --model {model}"]
        if self.kind in ("rotations", "ranges"):
            of = f"--target {self.target}" if self.target else f"--outlier-fraction {self.outlier_fraction:g}"
            words += [f"--only {self.kind} {of}", f"--name {self.name}" if self.name else ""]
            return " ".join(filter(None, words))
        words.append(f"--bits {self.bits}")
        own = {"levels": (self.levels, 16), "pairs": (self.pairs, None), "stages": (self.stages, None)}
        given = {name: value for name, (value, usual) in own.items() if value != usual and self.kind == "keys"}
        words += [f"--{name} {value}" for name, value in given.items()]
        return " ".join(words + ([f"--name {self.name}"] if self.name else []))


def stages_for(bits: float, pairs: int, levels: int) -> int:
    """Stages that come closest to ``bits`` an element: one costs 2 log2(levels) bits a group of 2 * pairs elements."""
    return max(1, round(bits * pairs / (levels.bit_length() - 1)))


def find_codebook(wanted: CodebookNeed, model: str | None, weights_hash: str | None) -> Codebook | None:
    """The best codebook there is: of the same weights, else of the same model id; without a model, of that name."""
    fitting = [book for book in codebooks() if wanted.fits(book.info)]
    if model is None:
        return fitting[0] if fitting and wanted.name else None
    for book in fitting:
        if book.info.weights_hash == weights_hash:
            return book
    return next((book for book in fitting if book.info.model == model), None)


def require(
    wanted: CodebookNeed, model: str | None, weights_hash: str | None, layers: Sequence[int], heads: int, head_dim: int
) -> Codebook:
    """The codebook for some layers of a model with heads of that size.

    Raises MethodError: there is none, and the command that trains it, or it was made for another shape.
    """
    book = find_codebook(wanted, model, weights_hash)
    if book is None and model is None and wanted.name is None:
        raise MethodError(
            "Codebooks belong to a model and these tensors to none; name a trained set: codebooks = NAME."
        )
    if book is None:
        id = model or "ID"
        missing = f"{wanted.kind} codebooks" if wanted.kind in ("keys", "values") else wanted.kind
        raise MethodError(f"There are no {missing} like this for {id}. Run: {wanted.command(id)}")
    info = book.info
    if info.layers <= max(layers) or (info.kv_heads, info.head_dim) != (heads, head_dim):
        raise MethodError(
            f"Codebook {info.file_name} is for {info.layers} layers, {info.kv_heads} KV heads of {info.head_dim}, not "
            f"for layer {max(layers)} with {heads} heads of {head_dim}. Run: {wanted.command(model or 'ID')}"
        )
    return book
