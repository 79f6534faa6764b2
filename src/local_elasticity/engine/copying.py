"""A structural copy of a model: its own modules, modes, hooks, attributes and containers; tensors are shared.

Parameters and buffers are put into the copy by name, wherever the model keeps them: registered, in a list such as the
`_flat_weights` of an LSTM, or in a closure. Functions and methods that are bound to a module are bound to its copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from local_elasticity.engine.copier import Copier
from local_elasticity.engine.object_parts import storage_of, unwrapped, without_finalizer


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
        self._fill_later(self._fill_tree, tree, training)
        self.model: nn.Module = self.of(model)

    def _fill_tree(self, tree: list[nn.Module], training: bool | None) -> None:
        for module in tree:
            self._fill_module(self._copies[id(module)], module)
            if training is not None:
                vars(self._copies[id(module)])["training"] = training

    @cached_property
    def shared(self) -> list[Shared]:
        """What shares memory in the model, of tensors with a name."""
        found: dict[int, Shared] = {}
        for name, tensor in self.named.items():
            storage = storage_of(tensor)
            found.setdefault(storage._cdata, Shared(storage)).named[name] = tensor
        for copied, place in self.tensors:
            if place in found:
                found[place].copies.append(copied)
        return [one for one in found.values() if len(one.named) + bool(one.copies) > 1]


@dataclass
class Shared:
    """Memory of a model that several of its tensors are views of.

    Attributes:
        named: those with a name.
        copies: copies of those without a name, which share other memory than these.
    """

    storage: torch.UntypedStorage
    named: dict[str, Tensor] = field(default_factory=dict)
    copies: list[Tensor] = field(default_factory=list)

    def joined(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Tensors with these values as views of one memory, which the copies are views of from now on as well; None
        where that is not possible."""
        originals = {name: self.named[name] for name in tensors}
        plain = all(_is_plain(one) for one in (*originals.values(), *tensors.values(), *self.copies))
        kinds = {(one.dtype, one.device) for one in (*tensors.values(), *self.copies)}
        stored = {one.dtype for one in originals.values()}
        if not plain or len(kinds) != 1 or len(stored) != 1:
            return None
        (dtype,), ((cast, device),) = stored, kinds
        flat = torch.empty(0, dtype=dtype, device=self.storage.device)
        flat.set_(self.storage, 0, (self.storage.nbytes() // dtype.itemsize,), (1,))
        memory = flat.to(device, cast, copy=True)
        made = {}
        for name, tensor in originals.items():
            made[name] = memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            made[name].data.copy_(tensors[name].data)
        for copied in self.copies:
            copied.data = copied.data.set_(
                memory.untyped_storage(), copied.storage_offset(), copied.shape, copied.stride()
            )
        return made


def _is_plain(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_nested or is_traceable_wrapper_subclass(tensor):
        return False
    return not (tensor.is_conj() or tensor.is_neg())
