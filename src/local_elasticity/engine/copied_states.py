"""What copies hold at a moment, so that two moments can be compared: attributes, elements, memory, states in C."""

from __future__ import annotations

import functools
import pickle
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from local_elasticity.engine.library_objects import are_pixels, pixels_in_bytes
from local_elasticity.engine.object_parts import (
    MAPPINGS,
    NOTHING,
    attributes_of,
    has_hidden_state,
    has_memory,
    members,
    parts,
    slot,
    storage_of,
    tried,
)

_WITH_ELEMENTS = (dict, list, tuple, set, frozenset, deque)

_OF_RECURRENT_LAYERS = ("_flat_weights", "_flat_weight_refs")
"""Lists of their weights, which nn.RNNBase builds again as soon as one of them is another tensor."""


class CopiedStates:
    """What copies hold.

    Attributes:
        tensors: copies of tensors without a name, each with the storage of the original.
    """

    def __init__(self) -> None:
        self.tensors: list[tuple[Tensor, int]] = []
        self._reads: list[Callable[[], Iterable[Any]]] = []

    def contents(self) -> list[list[Any]]:
        """What is held now, for a comparison by identity; memory of other kinds than tensors as a number."""
        memory = [_address(tensor) for tensor, _ in self.tensors]  # another one is in `tensor.data` now
        return [memory, *(list(read()) for read in self._reads)]

    def read_by(self, read: Callable[[], Iterable[Any]]) -> None:
        """Count what a function returns among `contents`."""
        self._reads.append(read)

    def of_module(self, attributes: dict[str, Any]) -> None:
        """Count the attributes of a module, without the lists that recurrent layers build again when their weights are
        put."""
        self._reads.append(functools.partial(_values, attributes))

    def of_mapping(self, made: Any) -> None:
        """Count the keys and values of a dict or a weak dict."""
        self._reads.append(functools.partial(_keys_and_values, made))

    def of_attributes(self, made: Any) -> None:
        """Count attributes and slots of a copy, and what it keeps in memory of its own, among `contents`."""
        own, found = attributes_of(made), members(type(made))
        if own is not None:
            self._reads.append(functools.partial(_keys_and_values, own))
        if found:
            self._reads.append(lambda: [slot(made, member) for member in found])
        if has_memory(made):
            self._reads.append(lambda: [hash(bytes(memoryview(made)))])

    def of_hidden_state(self, made: Any) -> None:
        """Count what an object keeps outside of attributes and slots."""
        if has_hidden_state(made):
            self._reads.append(functools.partial(_state, made))

    def of_parts(self, made: Any, most: float) -> None:
        """Count all parts of what the code of a class has made among `contents`, unless there are more than `most`."""
        found = parts(made, most)
        if len(found) > most:
            self._reads.append(_unknown)
        copied = {id(tensor) for tensor, _ in self.tensors}
        for part in found:
            kind = type(part)
            if issubclass(kind, Tensor):
                storage: Any = NOTHING if id(part) in copied else tried(storage_of, part)
                self.tensors += [(part, storage._cdata)] if storage is not NOTHING else []
            elif not issubclass(kind, (nn.Module, type)):
                base = next((one for one in _WITH_ELEMENTS if issubclass(kind, one)), None)
                if base is not None:
                    self._reads.append(functools.partial(_keys_and_values if base is dict else base.__iter__, part))
                self.of_attributes(part)
                self.of_hidden_state(part)


def _state(value: Any) -> list[Any]:
    """A number for the state of an object that is written in C."""
    found = tried(_in_bytes, value)
    return _unknown() if found is NOTHING else [hash(found)]


def _unknown() -> list[Any]:
    """What stands for a state that cannot be read: it is never the same as before."""
    return [object()]


def _in_bytes(value: Any) -> bytes:
    kind = type(value)
    if issubclass(kind, np.ndarray) and not value.dtype.hasobject:
        return np.ndarray.tobytes(value)
    if issubclass(kind, torch.Generator):
        return value.get_state().numpy().tobytes()
    if issubclass(kind, torch.UntypedStorage):
        return torch.empty(0, dtype=torch.uint8, device=value.device).set_(value).cpu().numpy().tobytes()
    if are_pixels(kind):
        return pixels_in_bytes(value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some objects of itertools will not be pickled by a later Python
        return pickle.dumps(value)


def _values(part: dict[Any, Any]) -> list[Any]:
    """What the attributes of a module are, without those lists if it is a recurrent layer."""
    if "_flat_weights_names" not in part:
        return _keys_and_values(part)
    return [value for key, value in part.items() if key not in _OF_RECURRENT_LAYERS]


def _keys_and_values(mapping: Any) -> list[Any]:
    """What a dict or a weak dict holds, by the methods of Python's own class, in its order."""
    base: Any = next(one for one in type(mapping).__mro__ if one in MAPPINGS)
    return [*base.keys(mapping), *base.values(mapping)]


def _address(tensor: Tensor) -> Any:
    """Where a tensor's numbers are; `NOTHING` where torch does not tell."""
    return tried(Tensor.data_ptr, tensor)
