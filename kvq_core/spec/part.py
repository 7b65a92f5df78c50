"""What every part of a spec is."""

from kvq_core.frozen import Frozen
from kvq_core.methods.numbers import no_truth


class SpecPart(Frozen):
    """Data in which no number is given as true or false."""

    _no_truth = no_truth
