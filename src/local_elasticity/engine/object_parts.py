"""What objects are made of: attributes, slots, elements, closures, storages, and modules inside of wrappers."""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
import types
import weakref
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from local_elasticity.engine.guard import raise_interruption

ATOMS: frozenset[type] = frozenset(
    {type(None), bool, int, float, complex, str, bytes, type, range, object}
    | {torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format}
    | {types.ModuleType, types.CodeType, types.GeneratorType, memoryview}
    | {type(threading.Lock()), type(threading.RLock())}
)
"""Classes whose objects are never written to, or have no copy."""

_IN_MEMORY = (bytearray, array, ctypes.Structure, ctypes.Union, ctypes.Array, ctypes._SimpleCData)

_TRANSPARENT: tuple[Any, ...] = (
    *(dict, list, tuple, set, frozenset, deque, weakref.ref, weakref.WeakSet, functools.partial),
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType, types.CellType),
    *(types.MappingProxyType, *weakref.ProxyTypes, *_IN_MEMORY),
)
"""Classes of objects whose changes are seen, or that have none."""

MAPPINGS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, OrderedDict, defaultdict, dict)
"""Classes of Python's with keys, each before those that it derives from."""

NOTHING = object()

_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def attributes_of(value: Any) -> Any:
    """The `__dict__` of an object; None if it has none."""
    kind = type(value)
    if issubclass(kind, threading.local):  # a dict for each thread
        return value.__dict__
    return object.__getattribute__(value, "__dict__") if kind.__dictoffset__ else None


def members(kind: type) -> list[types.MemberDescriptorType]:
    """The slots of a class and its bases."""
    slotted = [vars(base) for base in kind.__mro__ if "__slots__" in vars(base)]
    return [one for base in slotted for one in base.values() if isinstance(one, types.MemberDescriptorType)]


def slot(value: Any, member: types.MemberDescriptorType) -> Any:
    """What an object holds in a slot; `NOTHING` if the slot is empty."""
    try:
        return member.__get__(value, type(value))
    except AttributeError as error:
        raise_interruption(error)
        return NOTHING


def proxied(proxy: Any) -> Any:
    """What a weak proxy stands for; `NOTHING` if that is gone."""
    try:
        return proxy.__dir__.__self__
    except ReferenceError as error:
        raise_interruption(error)
        return NOTHING


def cell_contents(cell: types.CellType) -> Any:
    """What a closure's cell holds; `NOTHING` where its name is not bound yet."""
    try:
        return cell.cell_contents
    except ValueError as error:
        raise_interruption(error)
        return NOTHING


def tried(function: Callable[..., Any], *args: Any) -> Any:
    """What the code of a class returns; `NOTHING` where it raises, as that of whatever cannot be copied does."""
    try:
        return function(*args)
    except Exception as error:
        raise_interruption(error)
        return NOTHING


def storage_of(tensor: Tensor) -> torch.UntypedStorage:
    """The storage of its values; for a sparse tensor, that of its nonzero values."""
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    elif tensor.layout in _COMPRESSED:
        tensor = tensor.values()
    return tensor.untyped_storage()


def has_memory(value: Any) -> bool:
    """Whether an object is numbers in memory, such as a bytearray."""
    return issubclass(type(value), _IN_MEMORY)


def has_hidden_state(value: Any) -> bool:
    """Whether an object may change outside of attributes, slots and elements, such as a random generator. Values that
    compare and hash by themselves, such as dates, do not change."""
    kind: Any = type(value)
    if issubclass(kind, np.ndarray):
        return True
    if kind in ATOMS or issubclass(kind, _TRANSPARENT) or kind.__hash__ not in (None, object.__hash__):
        return False
    own = len(members(kind)) + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    return kind.__basicsize__ > object.__basicsize__ + own * ctypes.sizeof(ctypes.c_void_p)


def parts(value: Any, most: float) -> list[Any]:
    """The objects that this one refers to, directly or indirectly, and this one; at most `most` + 1 of them."""
    seen: dict[int, Any] = {}
    waiting = [value]
    while waiting and len(seen) <= most:
        one = waiting.pop()
        if type(one) not in ATOMS and id(one) not in seen:
            seen[id(one)] = one
            waiting += _direct_parts(one, type(one))
    return list(seen.values())


def _direct_parts(value: Any, kind: type) -> list[Any]:
    """What an object holds itself. Modules and tensors count as one part. So do loggers, which lead to all others."""
    if issubclass(kind, (nn.Module, Tensor, type, logging.Logger)):
        return []
    found = list(dict.values(value)) if issubclass(kind, dict) else []
    for base in (list, tuple, set, frozenset, deque):
        if issubclass(kind, base):
            found += base.__iter__(value)
    attributes = attributes_of(value)
    if isinstance(attributes, dict) and attributes is not value:
        found += attributes.values()
    return found + [slot(value, member) for member in members(kind)]


def unwrapped(model: Any) -> Any:
    """The module inside torch.compile, DataParallel and DistributedDataParallel. A subclass or hooks of the wrapper may
    compute something, so that such a wrapper stays."""
    while True:
        if type(model).__name__ == "OptimizedModule":
            model = model._orig_mod
        elif type(model) in (nn.DataParallel, nn.parallel.DistributedDataParallel) and not _has_hooks(model):
            model = model.module
        else:
            return model


def _has_hooks(module: nn.Module) -> bool:
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(hooks)


def without_finalizer(kind: type[Any]) -> type[Any]:
    """The class without its `__del__`, which would release what the original still uses. What the user's classes do for
    a new subclass, such as listing it, is not done."""
    if not hasattr(kind, "__del__") or issubclass(kind, _Unannounced):
        return kind
    members = {"__del__": lambda self: None, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type.__new__(type(kind), kind.__name__, (_Unannounced, kind), members)


class _Unannounced:
    """The first base of a class of which no other base is told."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None: ...
