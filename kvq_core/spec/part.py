"""The base of every part of a spec: frozen data in which true and false are no numbers."""

from kvq_core.frozen import Frozen
from kvq_core.methods.numbers import no_truth


class SpecPart(Frozen):
    """Data in which no number is given as true or false."""

    _no_truth = no_truth
