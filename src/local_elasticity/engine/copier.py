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
import logging
import operator
import threading
import types
import warnings
import weakref
from collections import defaultdict, deque
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from local_elasticity.engine.filling import Filling
from local_elasticity.engine.guard import raise_interruption
from local_elasticity.engine.library_objects import are_pixels, copy_of_file, is_file_in_memory, object_cells
from local_elasticity.engine.object_parts import (
    ATOMS,
    MAPPINGS,
    NOTHING,
    attributes_of,
    cell_contents,
    members,
    parts,
    proxied,
    storage_of,
    tried,
    unwrapped,
    without_finalizer,
)

_OF_EVERY_MODULE = frozenset(nn.Module().__dict__)

_SEQUENCES = (list, deque)
_CONTAINERS: frozenset[type] = frozenset({*MAPPINGS, *_SEQUENCES, set, weakref.WeakSet})
_EMPTY: frozenset[type] = frozenset({*_CONTAINERS, types.SimpleNamespace, threading.local, object})
"""Classes of Python's that make empty objects of the classes that derive from them."""

_BUILTIN_METHODS = (types.BuiltinFunctionType, types.MethodWrapperType)
_CALLABLES = (
    *(types.MethodType, types.FunctionType, *_BUILTIN_METHODS, weakref.ref),
    *(functools.partial, functools._lru_cache_wrapper),
)


class Copier(Filling):
    """Copies objects part by part, by rules for each kind of object."""

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
            made = value.clone_state()
            self._states.of_hidden_state(made)
            return made
        if kind is types.MappingProxyType:
            return types.MappingProxyType(self._of(gc.get_referents(value)[0]))
        if kind in weakref.ProxyTypes:
            there = proxied(value)
            return value if there is NOTHING else weakref.proxy(self._of(there))
        return self._object(value, kind, base)

    def _tensor(self, tensor: Tensor) -> Tensor:
        """A copy in memory of its own, which views of the same memory share."""
        if tensor.device.type == "meta":
            return tensor
        plain = tensor.layout is torch.strided and not (tensor.is_nested or is_traceable_wrapper_subclass(tensor))
        memory = self._memory
        copied = memory.view(tensor) if plain else tensor.detach().clone().to(memory.dtype_of(tensor))
        if isinstance(tensor, nn.Parameter):
            copied._is_param = True  # what isinstance asks
        if tensor.requires_grad and tensor.is_leaf:
            copied.requires_grad = True  # the method `requires_grad_` is refused inside of torch.func
        self._copies[id(tensor)] = copied
        storage = tried(storage_of, tensor)
        if storage is not NOTHING:
            self.tensors.append((copied, storage._cdata))
        if plain and vars(tensor):
            self._fill_later(self._fill, copied, tensor)
        return copied

    def _module(self, module: nn.Module) -> Any:
        inner = unwrapped(module)
        if inner is not module:
            return self._of(inner)
        made = self._copies[id(module)] = object.__new__(without_finalizer(type(module)))
        self._fill_later(self._fill_module, made, module)
        return made

    def _fill_module(self, made: Any, module: nn.Module) -> None:
        """Give the copy of a module the copies of everything that the module holds."""
        attributes = made.__dict__
        self._states.of_module(attributes)
        for key, value in module.__dict__.items():
            if type(value) in ATOMS:
                attributes[key] = value
            elif key in ("_parameters", "_buffers"):
                attributes[key] = {}
                self._states.read_by(attributes[key].values)
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
        self._fill_later(self._fill_container, made, value, base)
        return made

    def _fill_container(self, made: Any, value: Any, base: Any) -> None:
        if base in MAPPINGS:
            self._fill_mapping(made, value, base)
        elif base in _SEQUENCES:
            base.extend(made, self._at_first(base.__iter__(value)))
            for i, part in enumerate(base.__iter__(value)):
                if type(part) not in self._atoms:
                    self._put(part, base.__setitem__, made, i)
        else:
            copies = [self._of(part) for part in list(base.__iter__(value))]
            self._last.append(lambda: [base.add(made, part) for part in copies])
        if base not in MAPPINGS:
            self._states.read_by(functools.partial(base.__iter__, made))
        if type(made) is not base or attributes_of(value):
            self._fill(made, value)

    def _fill_mapping(self, made: Any, value: Any, base: Any) -> None:
        """Put the items. Keys that are objects are put again when they are copied and complete."""
        if base is defaultdict:
            made.default_factory = self._of(value.default_factory)
        items, put = list(base.items(value)), base.__setitem__
        objects = [key for key, _ in items if type(key) not in self._atoms]
        if objects:
            put = functools.partial(self._put_item, base)
            self._keyed.append((made, base))
        for key, part in items:
            self._put(part, put, made, key)
        self._states.of_mapping(made)

    def _immutable(self, value: Any, kind: type, base: Any) -> Any:
        complete = self._complete_of if base is frozenset else functools.partial(map, self._of)
        copies = list(complete(base.__iter__(value)))
        if id(value) in self._copies or (kind is tuple and all(map(operator.is_, value, copies))):
            return value
        try:
            made = base.__new__(kind, copies)
        except TypeError as error:  # what torch and Python make themselves, such as the result of max
            raise_interruption(error)
            made = self._rebuilt(value, kind)
            return value if made is NOTHING else made
        if kind is not base:
            self._fill_later(self._fill, made, value)
        return made

    def _callable(self, value: Any, kind: type) -> Any:
        """The function bound to copies of its bound objects, with a cache of its own if it has one; the function itself
        if it is bound to no part of the model."""
        if issubclass(kind, types.FunctionType):
            return self._function(value)
        if issubclass(kind, types.MethodType):
            owner, function = self._of(value.__self__), self._function_of(value)
            return value if owner is value.__self__ and function is value.__func__ else kind(function, owner)
        if issubclass(kind, _BUILTIN_METHODS):
            one = value.__self__
            owner = one if one is None or isinstance(one, (type, types.ModuleType)) else self._of(one)
            if owner is not one and type(owner) not in _CONTAINERS:
                self._complete_of([one])
            return value if owner is one else getattr(owner, value.__name__)
        if issubclass(kind, weakref.ref):
            return self._reference(value)
        if issubclass(kind, functools.partial):
            args = [self._bound(part) for part in value.args]
            named = {key: self._bound(part) for key, part in value.keywords.items()}
            made = functools.partial.__new__(kind, self._bound(value.func), *args, **named)
            self._fill_later(self._fill, made, value)
            return made
        function = self._of(value.__wrapped__)
        if function is value.__wrapped__ and value.cache_info().currsize:  # entries may be draws that are made once
            return value
        cached = functools.lru_cache(**value.cache_parameters())(function)
        self._fill_later(self._fill, cached, value)
        return cached

    def _function_of(self, method: types.MethodType) -> Any:
        """The function of a method: that of its class, or a copy of another one, which may have a state."""
        function = method.__func__
        name, kind = getattr(function, "__name__", ""), type(method.__self__)
        of_class = issubclass(kind, type) or any(vars(base).get(name) is function for base in kind.__mro__)
        return function if of_class else self._of(function)

    def _reference(self, value: Any) -> Any:
        there = value()
        if there is None:
            return value
        self._lasting.append(there)  # a method is made at this call
        return (weakref.WeakMethod if isinstance(there, types.MethodType) else weakref.ref)(self._of(there))

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        cells = function.__closure__ or ()
        given, named, own = function.__defaults__ or (), function.__kwdefaults__ or {}, vars(function)
        held = [*given, *named.values(), *own.values()]
        if not cells and not held:
            return function
        fresh = [cell for cell in cells if id(cell) not in self._cells]
        self._cells |= {id(cell): types.CellType() for cell in fresh}
        closure = tuple(self._cells[id(cell)] for cell in cells)
        made = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, closure)
        self._copies[id(function)] = made  # it may be in a cell of its own
        for cell in fresh:
            self._fill_later(self._fill_cell, cell)
        copies = [self._bound(part) for part in held]
        if not cells and all(map(operator.is_, held, copies)):
            self._copies[id(function)] = function
            return function
        made.__defaults__ = tuple(copies[: len(given)]) or None
        made.__kwdefaults__ = dict(zip(named, copies[len(given) :], strict=False)) or None
        vars(made).update(zip(own, copies[len(given) + len(named) :], strict=True))
        self._states.read_by(vars(made).values)
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
            made = tried(copy.deepcopy, value)
            if made is NOTHING:
                return value
            self._states.of_hidden_state(made)
            return made
        made = self._copies[id(value)] = np.empty_like(value)
        self._fill_later(self._fill_array, made, value)
        return made

    def _fill_array(self, made: Any, value: Any) -> None:
        made[...] = value
        for i, part in enumerate(value.flat):
            if type(part) not in self._atoms:
                self._put(part, np.ndarray.__setitem__, made, np.unravel_index(i, value.shape))
        self._states.read_by(lambda: list(made.flat))

    def _object(self, value: Any, kind: type, base: Any) -> Any:
        """A copy of a Python object. An object that cannot be copied, is large, or releases a resource when it is
        deleted is shared. So is a logger."""
        if is_file_in_memory(kind) or are_pixels(kind):
            return self._in_c(value, kind)
        shared = (type, Enum, np.number, np.bool_, logging.Logger)
        if issubclass(kind, shared) or hasattr(kind, "__del__") or self._is_large(value):
            return value
        has_parts = attributes_of(value) is not None or bool(members(kind))
        own_reduce = base is object and _is_reduced_by_itself(kind)
        if id(value) in self._under_way:  # the code of its class asks for parts that lead back to it
            made = self._assembled(value, kind, base) if has_parts else NOTHING
            if made is NOTHING:
                raise ValueError(
                    f"{self._argument}: an object of {kind.__qualname__}, which it holds, is made of parts that refer "
                    "to it and cannot be copied; let __setstate__ set them, or hold it outside of it"
                )
            return made
        if hasattr(kind, "__deepcopy__"):
            self._complete()
        if id(value) in self._copies:
            return value
        self._under_way.add(id(value))
        made = self._deep_copy(value) if hasattr(kind, "__deepcopy__") else NOTHING
        if made is NOTHING and own_reduce:
            made = self._rebuilt(value, kind)
        if made is NOTHING and has_parts:
            made = self._assembled(value, kind, base)
        if made is NOTHING and has_parts and base is object:
            made = self._rebuilt(value, kind)
        self._under_way.discard(id(value))
        return value if made is NOTHING else made

    def _in_c(self, value: Any, kind: Any) -> Any:
        """A copy of a file in memory or of an image's pixels; a closed file itself."""
        made = tried(kind.copy if are_pixels(kind) else copy_of_file, value)
        if made is NOTHING:
            return value
        self._states.of_hidden_state(made)
        if attributes_of(value):
            self._fill_later(self._fill, made, value)
        return made

    def _assembled(self, value: Any, kind: type, base: Any) -> Any:
        """An empty object with the attributes and slots of this one."""
        if id(value) in self._copies:
            return self._copies[id(value)]
        try:
            made = self._copies[id(value)] = base.__new__(kind)
        except TypeError as error:  # files: what Python itself makes
            raise_interruption(error)
            return NOTHING
        self._fill_later(self._fill, made, value)
        return made

    def _rebuilt(self, value: Any, kind: type) -> Any:
        """A copy by the class's own `__reduce_ex__`, which says what it is made of."""
        reduced = tried(_reduced, value, kind)
        if not isinstance(reduced, tuple):  # a global name, or an error
            return value if isinstance(reduced, str) else NOTHING
        make, args, state, items, pairs = (*reduced, None, None, None)[:5]
        items, pairs = list(items or ()), list(pairs or ())
        self._lasting.append((args, state, items, pairs))  # copies are known by the identity of their originals
        made = tried(make, *self._complete_of(args))
        if id(value) in self._copies:  # a part of its arguments refers to it
            return self._copies[id(value)]
        if made is NOTHING or made is value:
            return made
        self._copies[id(value)] = made
        if hasattr(made, "__setstate__") and state is not None:
            if tried(made.__setstate__, *self._complete_of([state])) is NOTHING:
                del self._copies[id(value)]
                return NOTHING
        else:
            for part in state if isinstance(state, tuple) else (state,):
                for key, one in part.items() if isinstance(part, dict) else ():
                    self._put(one, object.__setattr__, made, key)
        for part in self._complete_of(items):
            made.append(part)
        self._put_pairs(made, pairs)
        self._states.of_parts(made, self._most_parts)
        return made

    def _put_pairs(self, made: Any, pairs: list[tuple[Any, Any]]) -> None:
        keys = [self._key(key) for key, _ in pairs]
        if any(type(key) not in self._atoms for key in keys):
            self._complete()
        for key, (_, part) in zip(keys, pairs, strict=True):
            self._put(part, operator.setitem, made, key)

    def _deep_copy(self, value: Any) -> Any:
        """A copy by the object's own `__deepcopy__`, to which the copies of its tensors and modules are known."""
        inside = [part for part in parts(value, self._most_parts) if issubclass(type(part), (Tensor, nn.Module))]
        memo = {**self._copies, **{id(part): self._of(part) for part in inside}}
        made = tried(copy.deepcopy, value, memo)
        if made is not NOTHING and made is not value:
            self._lasting.append(memo.pop(id(memo), None))  # originals that deepcopy keeps alive
            self._copies = memo
            for cells in object_cells(made):
                self._fill_array(cells, cells)
            self._states.of_parts(made, self._most_parts)
        return made


def _set_cell(cell: types.CellType, key: None, value: Any) -> None:
    cell.cell_contents = value


def _is_reduced_by_itself(kind: Any) -> bool:
    own = kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__
    return own or kind in copyreg.dispatch_table


def _reduced(value: Any, kind: type) -> Any:
    """What `pickle` and `copy` ask an object for: a function and its arguments, a state, elements."""
    reduce = copyreg.dispatch_table.get(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from Python 3.12 on, itertools says that 3.14 will not copy it
        return value.__reduce_ex__(4) if reduce is None else reduce(value)
