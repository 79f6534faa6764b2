"""Copies of objects, part by part and each part once: what a model, a loss or an optimizer holds, by one set of rules.

Every object has parts: attributes, slots, elements. A copy is an empty object of the same class with the copies of its
parts. Functions and methods are bound to copies of what they are bound to. Tensors are copied by their memory, so that
views stay views. What has no copy, such as a lock or a file, is shared by itself.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import gc
import operator
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from local_elasticity.engine.guard import raise_interruption
from local_elasticity.engine.object_parts import (
    ATOMS,
    NOTHING,
    attributes_of,
    cell_contents,
    has_memory,
    members,
    parts,
    proxied,
    slot,
    storage_of,
    unwrapped,
    without_finalizer,
)

MOST_PARTS = 200
"""Objects with more parts than this are shared, not copied. A module may refer to a trainer, which is a whole program.
"""

_OF_EVERY_MODULE = frozenset(nn.Module().__dict__)

_MAPPINGS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, OrderedDict, defaultdict, dict)
_SEQUENCES = (list, deque)
_CONTAINERS: frozenset[type] = frozenset({*_MAPPINGS, *_SEQUENCES, set, weakref.WeakSet})
_EMPTY: frozenset[type] = frozenset({*_CONTAINERS, types.SimpleNamespace, threading.local, object})
"""Classes of Python's that make empty objects of the classes that derive from them."""

_BUILTIN_METHODS = (types.BuiltinFunctionType, types.MethodWrapperType)
_CALLABLES = (
    *(types.MethodType, types.FunctionType, *_BUILTIN_METHODS, weakref.ref),
    *(functools.partial, functools._lru_cache_wrapper),
)

_OF_RECURRENT_LAYERS = ("_flat_weights", "_flat_weight_refs")
"""Lists of their weights, which nn.RNNBase builds again as soon as one of them is another tensor."""

Put = Callable[[Any, Any, Any], object]
"""How a value is put into an object at a key, such as `dict.__setitem__`."""


class Copier:
    """Copies objects part by part. Parts that are tensors with a name can be put again.

    Attributes:
        tensors: copies of tensors without a name, each with the storage of the original.
    """

    def __init__(
        self,
        names: Mapping[int, str] | None = None,
        *,
        known: Mapping[int, Any] | None = None,
        dtype: torch.dtype | None = None,
        most_parts: float = MOST_PARTS,
    ) -> None:
        """`names` are those of tensors by identity, and `known` are copies by the identity of their originals. Other
        tensors are cloned, and cast to `dtype` where they are floating-point numbers. Objects with more than
        `most_parts` parts are shared.
        """
        self.tensors: list[tuple[Tensor, int]] = []
        self._names, self._known = names or {}, known or {}
        self._dtype, self._most_parts = dtype, most_parts
        self._copies: dict[int, Any] = dict(self._known)
        self._cells: dict[int, types.CellType] = {}
        self._storages: dict[int, Any] = {}
        self._marks: dict[str, dict[str, Any]] = {}
        self._marked: dict[str, Tensor] = {}
        self._slots: dict[str, list[tuple[Put, Any, Any]]] = defaultdict(list)
        self._reads: list[Callable[[], Iterable[Any]]] = []
        self._lasting: list[Any] = []

    def contents(self) -> list[list[Any]]:
        """What every object holds now, for a comparison by identity; memory of other kinds than tensors as a number;
        without the lists that recurrent layers build again when their weights are put."""
        cells = [[cell_contents(cell)] for cell in self._cells.values()]
        marks = [[vars(tensor).get(key) for key in self._marks[name]] for name, tensor in self._marked.items()]
        return [*cells, *marks, *(list(read()) for read in self._reads)]

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Put tensors, with the attributes of the original, wherever the tensor of that name is kept."""
        for name, tensor in tensors.items():
            for put, owner, key in self._slots[name]:
                put(owner, key, tensor)
            marks = self._marks.get(name)
            if marks:
                tensor.__dict__.update(marks)
                self._marked[name] = tensor

    def of(self, value: Any) -> Any:
        """The copy of an object."""
        kind = type(value)
        if kind in ATOMS:
            return value
        if id(value) not in self._copies:
            self._copies[id(value)] = value  # the copy refers to itself before it is complete
            self._copies[id(value)] = self._copy(value, kind)
        return self._copies[id(value)]

    def _copy(self, value: Any, kind: type) -> Any:
        if issubclass(kind, Tensor):
            return self._tensor(value)
        if issubclass(kind, nn.Module):
            return self._module(value)
        base = next(one for one in kind.__mro__ if one in _EMPTY)
        if base in _CONTAINERS:
            return self._container(value, kind, base)
        if issubclass(kind, (tuple, frozenset)):
            return self._immutable(value, kind, tuple if issubclass(kind, tuple) else frozenset)
        if issubclass(kind, _CALLABLES):
            return self._callable(value, kind)
        if issubclass(kind, np.ndarray):
            return self._array(value)
        if issubclass(kind, torch.Generator):
            return value.clone_state()
        if kind is types.MappingProxyType:
            return types.MappingProxyType(self.of(gc.get_referents(value)[0]))
        if kind in weakref.ProxyTypes:
            there = proxied(value)
            return value if there is NOTHING else weakref.proxy(self.of(there))
        return self._object(value, kind, base)

    def _put(self, value: Any, put: Put, owner: Any, key: Any) -> None:
        """Put the copy of a value; what has a name can be put again."""
        name = self._names.get(id(value))
        if name is None:
            put(owner, key, self.of(value))
            return
        self._slots[name].append((put, owner, key))
        put(owner, key, value)
        if name not in self._marks:
            self._marks[name] = {"_is_param": True} if isinstance(value, nn.Parameter) else {}  # what isinstance asks
            if vars(value) and not is_traceable_wrapper_subclass(value):
                self._marks[name] |= {key: self.of(part) for key, part in vars(value).items()}

    def _fill(self, made: Any, value: Any) -> None:
        """Give a copy its attributes and slots."""
        attributes, own = attributes_of(value), attributes_of(made)
        if attributes is value:  # a dict that is its own attributes
            object.__setattr__(made, "__dict__", made)
        elif attributes is not None:
            for key, part in dict.items(attributes):
                if key not in own:
                    self._put(part, dict.__setitem__, own, key)
        self._fill_slots(made, value)
        self._track(made)

    def _fill_slots(self, made: Any, value: Any) -> None:
        for member in members(type(value)):
            part = slot(value, member)
            if part is not NOTHING:
                self._put(part, _set_slot, made, member)

    def _track(self, made: Any) -> None:
        """Count attributes and slots of a copy, and what it keeps in memory of its own, among `contents`."""
        own, found = attributes_of(made), members(type(made))
        if own is not None:
            self._reads.append(functools.partial(dict.values, own))
        if found:
            self._reads.append(lambda: [slot(made, member) for member in found])
        if has_memory(made):
            self._reads.append(lambda: [hash(bytes(memoryview(made)))])

    def _tensor(self, tensor: Tensor) -> Tensor:
        """A copy in memory of its own, which views of the same memory share."""
        if tensor.device.type == "meta":
            return tensor
        plain = tensor.layout is torch.strided and not (tensor.is_nested or is_traceable_wrapper_subclass(tensor))
        copied = self._view(tensor) if plain else tensor.detach().clone()
        copied = copied.to(self._dtype) if self._dtype and copied.is_floating_point() else copied
        self._copies[id(tensor)] = copied
        storage = _tried(storage_of, tensor)
        if storage is not NOTHING:
            self.tensors.append((copied, storage._cdata))
        if plain and vars(tensor):
            self._fill(copied, tensor)
        return copied

    def _view(self, tensor: Tensor) -> Tensor:
        """The same view of a copy of the memory."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = storage.clone()
        viewed = tensor.data.new_empty(0).set_(
            self._storages[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride()
        )
        viewed = viewed.conj() if tensor.is_conj() else viewed
        return torch._neg_view(viewed) if tensor.is_neg() else viewed

    def _module(self, module: nn.Module) -> Any:
        inner = unwrapped(module)
        if inner is not module:
            return self.of(inner)
        made = self._copies[id(module)] = object.__new__(without_finalizer(type(module)))
        self._fill_module(made, module)
        return made

    def _fill_module(self, made: Any, module: nn.Module) -> None:
        """Give the copy of a module the copies of everything that the module holds."""
        attributes = made.__dict__
        self._reads.append(functools.partial(_values, attributes))
        for key, value in module.__dict__.items():
            if type(value) in ATOMS:
                attributes[key] = value
            elif key in ("_parameters", "_buffers"):
                attributes[key] = {}
                self._reads.append(attributes[key].values)
                for name, tensor in value.items():
                    self._put(tensor, dict.__setitem__, attributes[key], name)
            elif key in _OF_EVERY_MODULE and isinstance(value, (dict, set)) and not value:
                attributes[key] = value.copy()
            else:
                self._put(value, dict.__setitem__, attributes, key)
        if "_compiled_call_impl" in attributes:
            attributes["_compiled_call_impl"] = None
        self._fill_slots(made, module)

    def _container(self, value: Any, kind: type, base: Any) -> Any:
        """Filled by the methods of Python's own class, which do not run those of the user's. What refers to copies
        weakly is complete as long as this copier lives."""
        made = self._copies[id(value)] = base.__new__(kind)
        base.__init__(made, *(((), value.maxlen) if base is deque else ()))
        if base is defaultdict:
            made.default_factory = self.of(value.default_factory)
        if base in _MAPPINGS:
            for key, part in list(base.items(value)):
                self._put(part, base.__setitem__, made, self._key(key))
        elif base in _SEQUENCES:
            base.extend(made, base.__iter__(value))
            for i, part in enumerate(base.__iter__(value)):
                self._put(part, base.__setitem__, made, i)
        else:
            for part in list(base.__iter__(value)):
                base.add(made, self.of(part))
        self._reads.append(functools.partial(base.values if base in _MAPPINGS else base.__iter__, made))
        if kind is not base or attributes_of(value):
            self._fill(made, value)
        return made

    def _key(self, key: Any) -> Any:
        """A key of a dict. It is shared, because a global name may look it up, unless it is a module."""
        return self.of(key) if isinstance(key, nn.Module) else self._known.get(id(key), key)

    def _immutable(self, value: Any, kind: type, base: Any) -> Any:
        copies = [self.of(part) for part in base.__iter__(value)]
        try:
            made = base.__new__(kind, copies)
        except TypeError as error:  # what torch and Python make themselves, such as the result of max
            raise_interruption(error)
            made = self._rebuilt(value, kind)
            return value if made is NOTHING else made
        if kind is not base:
            self._copies[id(value)] = made
            self._fill(made, value)
        return made

    def _callable(self, value: Any, kind: type) -> Any:
        """The function bound to copies of its bound objects; the function itself if it is bound to no part of the
        model."""
        if issubclass(kind, types.FunctionType):
            return self._function(value)
        if issubclass(kind, types.MethodType):
            owner, function = self.of(value.__self__), self._function_of(value)
            return value if owner is value.__self__ and function is value.__func__ else kind(function, owner)
        if issubclass(kind, _BUILTIN_METHODS):
            one = value.__self__
            owner = one if one is None or isinstance(one, (type, types.ModuleType)) else self.of(one)
            return value if owner is one else getattr(owner, value.__name__)
        if issubclass(kind, weakref.ref):
            return self._reference(value)
        if issubclass(kind, functools.partial):
            args = [self._bound(part) for part in value.args]
            named = {key: self._bound(part) for key, part in value.keywords.items()}
            made = functools.partial.__new__(kind, self._bound(value.func), *args, **named)
            self._fill(made, value)
            return made
        inner = self.of(value.__wrapped__)
        return value if inner is value.__wrapped__ else functools.lru_cache(**value.cache_parameters())(inner)

    def _function_of(self, method: types.MethodType) -> Any:
        """The function of a method: that of its class, or a copy of another one, which may have a state."""
        function = method.__func__
        name, kind = getattr(function, "__name__", ""), type(method.__self__)
        of_class = issubclass(kind, type) or any(vars(base).get(name) is function for base in kind.__mro__)
        return function if of_class else self.of(function)

    def _reference(self, value: Any) -> Any:
        there = value()
        if there is None:
            return value
        self._lasting.append(there)  # a method is made at this call
        return (weakref.WeakMethod if isinstance(there, types.MethodType) else weakref.ref)(self.of(there))

    def _bound(self, value: Any) -> Any:
        """A copy of what a function is bound to; large objects, such as a dataset, are shared."""
        return value if self._is_large(value) else self.of(value)

    def _is_large(self, value: Any) -> bool:
        return len(parts(value, self._most_parts)) > self._most_parts

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        cells = function.__closure__ or ()
        fresh = [cell for cell in cells if id(cell) not in self._cells]
        self._cells |= {id(cell): types.CellType() for cell in fresh}
        closure = tuple(self._cells[id(cell)] for cell in cells)
        made = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, closure)
        if cells:
            self._copies[id(function)] = made  # it may be in a cell of its own
        for cell in fresh:
            self._fill_cell(cell)
        given, named, own = function.__defaults__ or (), function.__kwdefaults__ or {}, vars(function)
        held = [*given, *named.values(), *own.values()]
        copies = [self._bound(part) for part in held]
        if not cells and all(map(operator.is_, held, copies)):
            return function
        made.__defaults__ = tuple(copies[: len(given)]) or None
        made.__kwdefaults__ = dict(zip(named, copies[len(given) :], strict=False)) or None
        vars(made).update(zip(own, copies[len(given) + len(named) :], strict=True))
        self._reads.append(vars(made).values)
        return made

    def _fill_cell(self, cell: types.CellType) -> None:
        """One cell for all functions that share it, so that each function reads what the others write."""
        fresh, value = self._cells[id(cell)], cell_contents(cell)
        if id(value) in self._names:
            self._put(value, _set_cell, fresh, None)
        elif value is not NOTHING:
            fresh.cell_contents = self._bound(value)

    def _array(self, value: Any) -> Any:
        """A NumPy array in memory of its own, or of copies of the objects that it holds."""
        if value.dtype != object:
            made = _tried(copy.deepcopy, value)
            if made is NOTHING:
                return value
            self._reads.append(lambda: [hash(np.ndarray.tobytes(made))])
            return made
        made = self._copies[id(value)] = np.empty_like(value)
        for index in np.ndindex(value.shape):
            self._put(value[index], np.ndarray.__setitem__, made, index)
        self._reads.append(lambda: made.ravel().tolist())
        return made

    def _object(self, value: Any, kind: type, base: Any) -> Any:
        """A copy of a Python object. An object that cannot be copied, is large, or releases a resource when it is
        deleted is shared."""
        if issubclass(kind, (type, Enum, np.number, np.bool_)) or hasattr(kind, "__del__") or self._is_large(value):
            return value
        has_parts = attributes_of(value) is not None or bool(members(kind))
        own_reduce = base is object and _is_reduced_by_itself(kind)
        made = self._deep_copy(value) if hasattr(kind, "__deepcopy__") else NOTHING
        if made is NOTHING and own_reduce:
            made = self._rebuilt(value, kind)
        if made is NOTHING and has_parts:
            made = self._assembled(value, kind, base)
        if made is NOTHING and has_parts and base is object:
            made = self._rebuilt(value, kind)
        return value if made is NOTHING else made

    def _assembled(self, value: Any, kind: type, base: Any) -> Any:
        """An empty object with the attributes and slots of this one."""
        try:
            made = self._copies[id(value)] = base.__new__(kind)
        except TypeError as error:  # files: what Python itself makes
            raise_interruption(error)
            return NOTHING
        self._fill(made, value)
        return made

    def _rebuilt(self, value: Any, kind: type) -> Any:
        """A copy by the class's own `__reduce_ex__`, which says what it is made of."""
        reduced = _tried(_reduced, value, kind)
        if not isinstance(reduced, tuple):  # a global name, or an error
            return value if isinstance(reduced, str) else NOTHING
        make, args, state, items, pairs = (*reduced, None, None, None)[:5]
        items, pairs = list(items or ()), list(pairs or ())
        self._lasting.append((args, state, items, pairs))  # copies are known by the identity of their originals
        made = _tried(make, *[self.of(part) for part in args])
        if made is NOTHING or made is value:
            return made
        self._copies[id(value)] = made
        if hasattr(made, "__setstate__") and state is not None:
            if _tried(made.__setstate__, self.of(state)) is NOTHING:
                return NOTHING
        else:
            for part in state if isinstance(state, tuple) else (state,):
                for key, one in part.items() if isinstance(part, dict) else ():
                    self._put(one, object.__setattr__, made, key)
        for part in items:
            made.append(self.of(part))
        for key, part in pairs:
            self._put(part, operator.setitem, made, self._key(key))
        self._track(made)
        return made

    def _deep_copy(self, value: Any) -> Any:
        """A copy by the object's own `__deepcopy__`, to which the copies of its tensors and modules are known."""
        inside = [part for part in parts(value, self._most_parts) if issubclass(type(part), (Tensor, nn.Module))]
        copies = {id(part): self.of(part) for part in inside}
        known = {place: made for place, made in self._copies.items() if place != id(value)}
        made = _tried(copy.deepcopy, value, {**known, **copies})
        if made is not NOTHING:
            self._track(made)
        return made


def _values(part: dict[Any, Any]) -> list[Any]:
    """What the attributes of a module are, without those lists if it is a recurrent layer."""
    if "_flat_weights_names" not in part:
        return list(part.values())
    return [value for key, value in part.items() if key not in _OF_RECURRENT_LAYERS]


def _set_slot(owner: Any, member: types.MemberDescriptorType, value: Any) -> None:
    member.__set__(owner, value)


def _set_cell(cell: types.CellType, key: None, value: Any) -> None:
    cell.cell_contents = value


def _tried(function: Callable[..., Any], *args: Any) -> Any:
    """What the code of a class returns; `NOTHING` where it raises, as that of whatever cannot be copied does."""
    try:
        return function(*args)
    except Exception as error:
        raise_interruption(error)
        return NOTHING


def _is_reduced_by_itself(kind: Any) -> bool:
    own = kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__
    return own or kind in copyreg.dispatch_table


def _reduced(value: Any, kind: type) -> Any:
    """What `pickle` and `copy` ask an object for: a function and its arguments, a state, elements."""
    reduce = copyreg.dispatch_table.get(kind)
    return value.__reduce_ex__(4) if reduce is None else reduce(value)
