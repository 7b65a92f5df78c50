"""How well the subspace of another text's queries holds a text's own (SQuat, Figures 2 and 5)."""

from typing import Literal

from torch import Tensor

from kvq_core.capture.spectra import deviations, query_directions
from kvq_core.claims.measures import Context, Measure, Numbers
from kvq_core.claims.sample import Sample
from kvq_core.claims.texts import Text
from kvq_core.methods.prompt import query_gram, stack_queries


class OtherSubspaces(Measure):
    """Deviation of the later queries (SQuat's Definition 1) from the strongest ``rank_of_128``/128 x head_dim
    directions of several texts' queries, means over queries and heads.

    ``all``: of all the text's own queries; ``prompt``: of its prompt's; every name of ``others``: of all of that
    text's. Each as the mean over layers, and of the ``first`` layer, the one at three quarters (``late``) and the
    ``last``, as ``prompt.late``. ``space``: before or after RoPE.
    """

    space: Literal["pre", "post"]
    rank_of_128: int
    others: dict[str, Text]

    @property
    def names(self) -> tuple[str, ...]:
        whose = ("all", "prompt", *self.others)
        return (*whose, *(f"{each}.{layer}" for each in whose for layer in ("first", "late", "last")))

    def on_text(self, context: Context, sample: Sample) -> Numbers:
        n, own = sample.prompt, self._queries(sample)
        whose = {"all": own, "prompt": own[..., :n, :]}
        whose |= {name: self._queries(context.other(text, sample)) for name, text in self.others.items()}
        heads, dim = sample.keys.shape[1], sample.keys.shape[-1]
        rank = max(1, round(self.rank_of_128 / 128 * dim))
        spans = [query_directions(query_gram(queries, heads)) for queries in whose.values()]
        layers = {"first": 0, "late": round(0.75 * sample.layers) - 1, "last": sample.layers - 1}
        found: Numbers = {}
        for name, each in zip(whose, deviations(stack_queries(own[..., n:, :], heads), *spans), strict=True):
            by_layer = each[..., rank].mean(-1)
            found[name] = by_layer.mean().item()
            found |= {f"{name}.{place}": by_layer[layer].item() for place, layer in layers.items()}
        return found

    def _queries(self, sample: Sample) -> Tensor:
        return sample.queries if self.space == "post" else sample.rope.unrotate(sample.queries, 0)
