"""A structural copy of a model: its own modules, modes, hooks, attributes and containers; tensors are shared.

Parameters and buffers are put into the copy by name, wherever the model keeps them: registered, in a list such as the
`_flat_weights` of an LSTM, or in a closure. Functions and methods that are bound to a module are bound to its copy.
"""

from __future__ import annotations

import copy
import functools
import gc
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

MOST_PARTS = 200
"""Objects with more parts than this are shared, not copied. A module may refer to a trainer, which is a whole program.
"""

_ATOMS: frozenset[type] = frozenset(
    {type(None), bool, int, float, complex, str, bytes, type, range, torch.dtype, torch.device, torch.Size}
    | {torch.layout, torch.memory_format, types.BuiltinFunctionType, types.ModuleType}
)
_OF_EVERY_MODULE = frozenset(nn.Module().__dict__)
_PICKLED_BY = ("__reduce_ex__", "__reduce__", "__getstate__")

_INDIRECT = (
    *weakref.ProxyTypes,
    *(weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, types.MappingProxyType),
)

_OF_RECURRENT_LAYERS = ("_flat_weights", "_flat_weight_refs")
"""Lists of their weights, which nn.RNNBase builds again as soon as one of them is another tensor."""


def _values(part: dict[Any, Any]) -> list[Any]:
    """What a dict holds, without those lists if it is the attributes of a recurrent layer."""
    if "_flat_weights_names" not in part:
        return list(part.values())
    return [value for key, value in part.items() if key not in _OF_RECURRENT_LAYERS]


class StructuralCopy:
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
        """`names` are those of parameters and buffers by identity. Other tensors are cloned, and cast to `dtype` where
        they are floating-point numbers. Without `training`, modes stay what they are.
        """
        self.tensors: list[tuple[Tensor, int]] = []
        self._names, self._dtype = names, dtype
        self._storages: dict[int, Any] = {}
        self._marks: dict[str, dict[str, Any]] = {}
        self._slots: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
        self._parts: list[Any] = []
        self._copies: dict[int, Any] = {}
        self._cells: dict[int, types.CellType] = {}
        self._registered: dict[int, Tensor] = {}
        tree = [module for module in model.modules() if unwrapped(module) is module]
        for module in tree:
            self._copies[id(module)] = object.__new__(without_finalizer(type(module)))
            tensors = (*module._parameters.values(), *module._buffers.values())
            self._registered |= {id(tensor): tensor for tensor in tensors if tensor is not None}
        for module in tree:
            self._fill(self._copies[id(module)], module)
            if training is not None:
                vars(self._copies[id(module)])["training"] = training
        self.model: nn.Module = self.of(model)

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Put tensors wherever the model keeps the parameter or buffer of that name."""
        for name, tensor in tensors.items():
            for container, key in self._slots[name]:
                container[key] = tensor
            if name in self._marks:
                tensor.__dict__.update(self._marks[name])

    def contents(self) -> list[list[Any]]:
        """What every container holds now, for a comparison by identity; without the lists that recurrent layers build
        again when their weights are put."""
        cells = [[cell_contents(cell)] for cell in self._cells.values()]
        return cells + [_values(part) if isinstance(part, dict) else list(part) for part in self._parts]

    def of(self, value: Any) -> Any:
        """The copy of a part of the model."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        if id(value) not in self._copies:
            self._copies[id(value)] = value  # the copy refers to itself before it is complete
            self._copies[id(value)] = self._copy(value, kind)
        return self._copies[id(value)]

    def _copy(self, value: Any, kind: type) -> Any:
        if kind in _INDIRECT:
            return self._indirect(value, kind)
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, nn.Module):
            return self._module(value)
        if kind in (dict, OrderedDict) or isinstance(value, (dict, list, set, deque)):
            return self._container(value)
        if isinstance(value, tuple):
            return self._tuple(value, kind)
        if kind is frozenset:
            return frozenset(self.of(part) for part in value)
        if isinstance(value, (types.MethodType, types.FunctionType, functools.partial, weakref.ref)):
            return self._callable(value)
        if isinstance(value, torch.Generator):
            return value.clone_state()
        return self._object(value)

    def _put(self, container: Any, key: Any, value: Any) -> None:
        """Put the copy of a value; what is registered by name can be put again."""
        name = self._names.get(id(value))
        if name is not None:
            self._slots[name].append((container, key))
            if isinstance(value, nn.Parameter):
                self._marks[name] = {**vars(value), "_is_param": True}  # what isinstance(p, nn.Parameter) asks for
        container[key] = value if name is not None else self.of(value)

    def _tensor(self, tensor: Tensor) -> Tensor:
        """A copy in memory of its own, which views of the same memory share."""
        if tensor.layout is not torch.strided or tensor.device.type == "meta":
            return tensor
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = storage.clone()
        copied = tensor.data.new_empty(0).set_(
            self._storages[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride()
        )
        copied = copied.to(self._dtype) if self._dtype and copied.is_floating_point() else copied
        self.tensors.append((copied, storage._cdata))
        return copied

    def _module(self, module: nn.Module) -> Any:
        inner = unwrapped(module)
        if inner is not module:
            return self.of(inner)
        made = self._copies[id(module)] = object.__new__(without_finalizer(type(module)))
        self._fill(made, module)
        return made

    def _fill(self, made: Any, module: nn.Module) -> None:
        """Give the copy of a module the copies of everything that the module holds."""
        attributes = made.__dict__
        self._parts.append(attributes)
        for key, value in module.__dict__.items():
            if type(value) in _ATOMS:
                attributes[key] = value
            elif key in ("_parameters", "_buffers"):
                attributes[key] = {}
                self._parts.append(attributes[key])
                for name, tensor in value.items():
                    self._put(attributes[key], name, tensor)
            elif key in _OF_EVERY_MODULE and isinstance(value, (dict, set)) and not value:
                attributes[key] = value.copy()
            else:
                self._put(attributes, key, value)
        if "_compiled_call_impl" in attributes:
            attributes["_compiled_call_impl"] = None
        for name in _slots(type(module)):
            if hasattr(module, name):
                object.__setattr__(made, name, self.of(getattr(module, name)))

    def _tuple(self, value: tuple[Any, ...], kind: type) -> Any:
        parts = [self.of(part) for part in value]
        if kind is tuple:
            return tuple(parts)
        if hasattr(kind, "_make"):
            return kind._make(parts)
        try:
            made: Any = tuple.__new__(kind, parts)
        except TypeError:  # what torch and Python make themselves
            return value
        for key, part in (_attributes(value) or {}).items():
            self._put(made.__dict__, key, part)
        return made

    def _indirect(self, value: Any, kind: type) -> Any:
        """What refers to copies weakly or without writing; they live as long as this structural copy."""
        if kind is types.MappingProxyType:
            return types.MappingProxyType(self._bound(gc.get_referents(value)[0]))
        if kind in weakref.ProxyTypes:
            return weakref.proxy(self.of(value.__dir__.__self__))
        if kind is weakref.WeakSet:
            made = weakref.WeakSet(self.of(part) for part in value)
        else:
            made = kind((self._key(key), self.of(part)) for key, part in list(value.items()))
        self._parts.append(made)
        return made

    def _container(self, value: Any) -> Any:
        made = self._copies[id(value)] = copy.copy(value)
        self._parts.append(made)
        if _attributes(value) is value:  # a dict that is its own attributes
            made.__dict__ = made
        elif _attributes(value):
            vars(made).update({key: self.of(part) for key, part in vars(value).items()})
        if isinstance(value, dict):
            made.clear()
            for key, part in value.items():
                self._put(made, self._key(key), part)
        elif isinstance(value, (list, deque)):
            for i, part in enumerate(value):
                self._put(made, i, part)
        else:
            made.clear()
            made.update(self.of(part) for part in value)
        return made

    def _key(self, key: Any) -> Any:
        """A key of a dict. It is shared, because a global name may look it up, unless it is a module."""
        return self.of(key) if isinstance(key, nn.Module) else key

    def _callable(self, value: Any) -> Any:
        """The function bound to copies of its bound objects; the function itself if it is bound to no part of the
        model."""
        if isinstance(value, types.MethodType):
            owner = self._bound(value.__self__)
            return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
        if isinstance(value, weakref.ref):
            there = value()
            if isinstance(there, types.MethodType):
                return weakref.WeakMethod(types.MethodType(there.__func__, self._bound(there.__self__)))
            return value if there is None else weakref.ref(self._bound(there))
        if isinstance(value, functools.partial):
            args = [self._bound(part) for part in value.args]
            named = {key: self._bound(part) for key, part in value.keywords.items()}
            return functools.partial(self._bound(value.func), *args, **named)
        return self._function(value)

    def _bound(self, value: Any) -> Any:
        """A copy of what a function is bound to; large objects, such as a dataset, are shared."""
        return self.of(value) if isinstance(value, nn.Module) or _parts_of(value) <= MOST_PARTS else value

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        closure = function.__closure__ or ()
        given, keywords = function.__defaults__ or (), function.__kwdefaults__ or {}
        defaults = tuple(self._bound(value) for value in given)
        kwdefaults = {key: self._bound(value) for key, value in keywords.items()}
        pairs = [*zip(given, defaults, strict=True), *((value, kwdefaults[key]) for key, value in keywords.items())]
        if not closure and all(one is other for one, other in pairs):
            return function
        fresh = tuple(self._cell(cell) for cell in closure)
        made = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults or None, fresh)
        made.__kwdefaults__ = kwdefaults or None
        made.__dict__.update(function.__dict__)
        return made

    def _cell(self, cell: types.CellType) -> types.CellType:
        """One cell for all functions that share it, so that each function reads what the others write."""
        if id(cell) not in self._cells:
            fresh = self._cells[id(cell)] = types.CellType()
            value = cell_contents(cell)
            name = self._names.get(id(value))
            if name is not None:
                self._slots[name].append((_Cell(fresh), 0))
            if value is not NOTHING:
                fresh.cell_contents = self._bound(value)
        return self._cells[id(cell)]

    def _object(self, value: Any) -> Any:
        """A copy of a Python object with attributes. An object that cannot be copied, is large, or releases a resource
        when it is deleted is shared."""
        if isinstance(value, (type, Enum)) or hasattr(type(value), "__del__") or _parts_of(value) > MOST_PARTS:
            return value
        if not _is_plain(value):
            return self._deep_copy(value)
        try:
            made = self._copies[id(value)] = object.__new__(type(value))
        except TypeError:  # files, threads: what Python itself makes
            return value
        self._parts.append(made.__dict__)
        for key, part in value.__dict__.items():
            self._put(made.__dict__, key, part)
        return made

    def _deep_copy(self, value: Any) -> Any:
        """A copy by the object's own `__copy__` or `__reduce__`; modules and tensors are handled separately."""
        try:
            known = {place: made for place, made in self._copies.items() if place != id(value)}
            return copy.deepcopy(value, {**known, **self._registered})
        except Exception:  # locks, process groups, open files: whatever cannot be copied
            return value


def _attributes(value: Any) -> Any:
    return getattr(value, "__dict__", None)


NOTHING = object()


def cell_contents(cell: types.CellType) -> Any:
    """What a closure's cell holds; `NOTHING` where its name is not bound yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return NOTHING


class _Cell:
    """A closure's cell as a container of one thing."""

    def __init__(self, cell: types.CellType) -> None:
        self.cell = cell

    def __setitem__(self, key: int, value: Any) -> None:
        self.cell.cell_contents = value


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
    if not hasattr(kind, "__del__"):
        return kind
    members = {"__del__": lambda self: None, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type.__new__(type(kind), kind.__name__, (_Unannounced, kind), members)


class _Unannounced:
    """The first base of a class of which no other base is told."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None: ...


def _is_plain(value: Any) -> bool:
    """Whether an object is no more than its attributes."""
    kind = type(value)
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, BaseException)
        and all(getattr(kind, name) is getattr(object, name) for name in _PICKLED_BY)
        and not any(_slots(kind))
        and not hasattr(kind, "__deepcopy__")
    )


def _slots(kind: type) -> tuple[str, ...]:
    """The attributes that a class keeps outside of `__dict__`."""
    found = [(base, vars(base).get("__slots__", ())) for base in kind.__mro__]
    names = [(base, name) for base, names in found for name in ((names,) if isinstance(names, str) else names)]
    return tuple(_mangled(base, name) for base, name in names if not name.endswith("__"))


def _mangled(kind: type, name: str) -> str:
    """The name under which a class keeps an attribute of its own."""
    return f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") else name


def _parts_of(value: Any) -> int:
    """How many objects this one refers to, directly or indirectly; counting stops at `MOST_PARTS` + 1."""
    seen: set[int] = set()
    waiting = [value]
    while waiting and len(seen) <= MOST_PARTS:
        one = waiting.pop()
        if type(one) in _ATOMS or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, (list, tuple, set, frozenset, deque)):
            waiting += one
        elif not isinstance(one, (nn.Module, Tensor)) and hasattr(one, "__dict__"):
            waiting += one.__dict__.values()
    return len(seen)
