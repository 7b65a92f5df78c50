"""A mended model in memory: its edit written into the weights."""

import torch

from kvq_core.mend.edit import Edit
from kvq_core.mend.fold import mendable_layers, row_factors
from kvq_core.models import LoadedModel


def apply_to(model: LoadedModel, edit: Edit) -> None:
    """Change the weights of a model that nobody else uses."""
    offsets = {name: own.offset for own in mendable_layers(model).values() for name in own.norms or ()}
    parameters = dict(model.model.named_parameters())
    with torch.no_grad():
        for name, factor in row_factors(model, edit).items():
            parameter, offset = parameters[name], offsets.get(name, 0.0)
            by = factor.to(parameter).view(-1, *[1] * (parameter.dim() - 1)) if name not in offsets else None
            if by is None:
                by = factor.to(parameter).view(parameter.shape)
            parameter.copy_((parameter + offset) * by - offset)
