"""A structural copy of a model: its own modules, modes, hooks, attributes and containers; tensors are shared.

Parameters and buffers are put into the copy by name, wherever the model keeps them: registered, in a list such as the
`_flat_weights` of an LSTM, or in a closure. Functions and methods that are bound to a module are bound to its copy.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from local_elasticity.engine.copier import Copier
from local_elasticity.engine.object_parts import unwrapped, without_finalizer


class StructuralCopy(Copier):
    """A copy of `model`, with the tensors that are registered in it to be put by name.

    Attributes:
        model: the copy.
        tensors: copies of what modules hold without having registered it, each with the storage of the original.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Mapping[int, str],
        *,
        training: bool | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`names` are those of parameters and buffers by identity. Without `training`, modes stay what they are."""
        super().__init__(names, dtype=dtype)
        tree = [module for module in model.modules() if unwrapped(module) is module]
        for module in tree:
            self._copies[id(module)] = object.__new__(without_finalizer(type(module)))
        for module in tree:
            self._fill_module(self._copies[id(module)], module)
            if training is not None:
                vars(self._copies[id(module)])["training"] = training
        self.model: nn.Module = self.of(model)
