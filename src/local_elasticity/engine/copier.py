"""Copies of objects, part by part and each part once: what a model, a loss or an optimizer holds, by one set of rules.

Every object has parts: attributes, slots, elements. A copy is an empty object of the same class with the copies of its
parts. Functions and methods are bound to copies of what they are bound to. Tensors are copied by their memory, so that
views stay views. What has no copy, such as a lock or a file, is shared by itself.

Empty objects are filled after they are made, one after another. So a cycle of objects ends at an empty object, and a
long chain needs no deep recursion.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import gc
import logging
import operator
import pickle
import threading
import types
import warnings
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
from local_elasticity.engine.library_objects import (
    are_pixels,
    copy_of_file,
    is_file_in_memory,
    object_cells,
    pixels_in_bytes,
)
from local_elasticity.engine.object_parts import (
    ATOMS,
    NOTHING,
    attributes_of,
    cell_contents,
    has_hidden_state,
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
_WITH_ELEMENTS = (dict, list, tuple, set, frozenset, deque)
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
        named: originals of tensors with a name.
    """

    def __init__(
        self,
        names: Mapping[int, str] | None = None,
        *,
        known: Mapping[int, Any] | None = None,
        identities: Mapping[int, int] | None = None,
        dtype: torch.dtype | None = None,
        most_parts: float = MOST_PARTS,
        argument: str = "model",
    ) -> None:
        """`names` are those of tensors by identity, and `known` are copies by the identity of their originals.
        `identities` are numbers to put for other numbers: the `id` of a copy for that of the original. Other tensors
        are cloned, and cast to `dtype` where they are floating-point numbers. Objects with more than `most_parts` parts
        are shared. Errors begin with `argument`.
        """
        self.tensors: list[tuple[Tensor, int]] = []
        self.named: dict[str, Tensor] = {}
        self._names, self._known, self._identities = names or {}, known or {}, identities or {}
        self._dtype, self._most_parts, self._argument = dtype, most_parts, argument
        self._atoms = ATOMS - {int} if identities else ATOMS
        self._copies: dict[int, Any] = dict(self._known)
        self._cells: dict[int, types.CellType] = {}
        self._storages: dict[int, Any] = {}
        self._cast: dict[tuple[int, torch.dtype], Any] = {}
        self._marks: dict[str, dict[str, Any]] = {}
        self._marked: dict[str, Tensor] = {}
        self._slots: dict[str, list[tuple[Put, Any, Any]]] = defaultdict(list)
        self._reads: list[Callable[[], Iterable[Any]]] = []
        self._lasting: list[Any] = []
        self._waiting: list[Callable[[], object]] = []
        self._last: list[Callable[[], object]] = []
        self._keyed: list[tuple[Any, Any]] = []
        self._under_way: set[int] = set()

    def contents(self) -> list[list[Any]]:
        """What every object holds now, for a comparison by identity; memory of other kinds than tensors as a number;
        without the lists that recurrent layers build again when their weights are put."""
        cells = [[cell_contents(cell)] for cell in self._cells.values()]
        marks = [[vars(tensor).get(key) for key in self._marks[name]] for name, tensor in self._marked.items()]
        memory = [_address(tensor) for tensor, _ in self.tensors]  # another one is in `tensor.data` now
        return [*cells, *marks, memory, *(list(read()) for read in self._reads)]

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
        try:
            made = self._of(value)
            self._complete()
            self._put_keys()
        except RecursionError as error:
            raise_interruption(error)
            raise ValueError(
                f"{self._argument}: an object that it holds cannot be copied, because its parts are nested too deeply; "
                "raise sys.setrecursionlimit, or hold it outside of it"
            ) from error
        return made

    def _of(self, value: Any) -> Any:
        """The copy of an object, which may still be empty. The copy of an object that leads back to itself may have
        been made on the way."""
        kind = type(value)
        if kind in self._atoms:
            return value
        if kind is int:
            return self._identities.get(value, value)
        if id(value) not in self._copies:
            made = self._copy(value, kind)
            self._copies.setdefault(id(value), made)
        return self._copies[id(value)]

    def _complete(self) -> None:
        """Fill all empty objects, sets last: they hash their elements."""
        while self._waiting or self._last:
            (self._waiting or self._last).pop()()

    def _complete_of(self, values: Iterable[Any]) -> list[Any]:
        """Copies of values that are complete, for code that reads them."""
        copies = [self._of(value) for value in values]
        if any(type(one) not in ATOMS for one in copies):
            self._complete()
        return copies

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
            self._reads.append(functools.partial(_state, made))
            return made
        if kind is types.MappingProxyType:
            return types.MappingProxyType(self._of(gc.get_referents(value)[0]))
        if kind in weakref.ProxyTypes:
            there = proxied(value)
            return value if there is NOTHING else weakref.proxy(self._of(there))
        return self._object(value, kind, base)

    def _put(self, value: Any, put: Put, owner: Any, key: Any) -> None:
        """Put the copy of a value; what has a name can be put again."""
        name = self._names.get(id(value))
        if name is None:
            put(owner, key, self._of(value))
            return
        self._slots[name].append((put, owner, key))
        put(owner, key, value)
        if name not in self._marks:
            self.named[name] = value
            self._marks[name] = {"_is_param": True} if isinstance(value, nn.Parameter) else {}  # what isinstance asks
            if vars(value) and not is_traceable_wrapper_subclass(value):
                self._marks[name] |= {key: self._of(part) for key, part in vars(value).items()}

    def _fill_later(self, fill: Callable[..., object], *args: Any) -> None:
        self._waiting.append(functools.partial(fill, *args))

    def _fill(self, made: Any, value: Any) -> None:
        """Give a copy its attributes and slots."""
        attributes, own = attributes_of(value), attributes_of(made)
        if attributes is value:  # a dict that is its own attributes
            object.__setattr__(made, "__dict__", made)
        elif attributes is not None:
            missing = {key: part for key, part in dict.items(attributes) if key not in own}
            dict.update(own, zip(missing, self._at_first(missing.values()), strict=True))
            for key, part in missing.items():
                if type(part) not in self._atoms:
                    self._put(part, dict.__setitem__, own, key)
        self._fill_slots(made, value)
        self._track(made)

    def _at_first(self, values: Iterable[Any]) -> list[Any]:
        """What is in a copy before it is filled: names that a hash may be computed from, and no part of the user's."""
        return [value if type(value) in self._atoms else None for value in values]

    def _fill_slots(self, made: Any, value: Any) -> None:
        for member in members(type(value)):
            part = slot(value, member)
            if part is not NOTHING:
                self._put(part, _set_slot, made, member)

    def _track(self, made: Any) -> None:
        """Count attributes and slots of a copy, and what it keeps in memory of its own, among `contents`."""
        own, found = attributes_of(made), members(type(made))
        if own is not None:
            self._reads.append(functools.partial(_keys_and_values, own))
        if found:
            self._reads.append(lambda: [slot(made, member) for member in found])
        if has_memory(made):
            self._reads.append(lambda: [hash(bytes(memoryview(made)))])

    def _tensor(self, tensor: Tensor) -> Tensor:
        """A copy in memory of its own, which views of the same memory share."""
        if tensor.device.type == "meta":
            return tensor
        plain = tensor.layout is torch.strided and not (tensor.is_nested or is_traceable_wrapper_subclass(tensor))
        dtype = self._dtype if self._dtype and tensor.is_floating_point() else tensor.dtype
        copied = self._view(tensor, dtype) if plain else tensor.detach().clone().to(dtype)
        if isinstance(tensor, nn.Parameter):
            copied._is_param = True  # what isinstance asks
        if tensor.requires_grad and tensor.is_leaf:
            copied.requires_grad = True  # the method `requires_grad_` is refused inside of torch.func
        self._copies[id(tensor)] = copied
        storage = _tried(storage_of, tensor)
        if storage is not NOTHING:
            self.tensors.append((copied, storage._cdata))
        if plain and vars(tensor):
            self._fill_later(self._fill, copied, tensor)
        return copied

    def _view(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """The same view of a copy of the memory."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = storage.clone()
        memory, empty = self._storages[storage._cdata], tensor.data.new_empty(0)
        if dtype != tensor.dtype:
            key = storage._cdata, tensor.dtype
            if key not in self._cast:
                numbers = storage.nbytes() // tensor.element_size()
                self._cast[key] = torch.UntypedStorage(numbers * dtype.itemsize, device=tensor.device)
                fresh = tensor.data.new_empty(0, dtype=dtype).set_(self._cast[key], 0, (numbers,), (1,))
                fresh.copy_(empty.set_(memory, 0, (numbers,), (1,)))  # torch.func does not tell a result's memory
            memory, empty = self._cast[key], tensor.data.new_empty(0, dtype=dtype)
        viewed = empty.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
        viewed = viewed.conj() if tensor.is_conj() else viewed
        return torch._neg_view(viewed) if tensor.is_neg() else viewed

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
        self._fill_later(self._fill_container, made, value, base)
        return made

    def _fill_container(self, made: Any, value: Any, base: Any) -> None:
        if base is defaultdict:
            made.default_factory = self._of(value.default_factory)
        if base in _MAPPINGS:
            items, put = list(base.items(value)), base.__setitem__
            if not all(type(key) in self._atoms for key, _ in items):
                put = functools.partial(self._put_item, base)
                self._keyed.append((made, base))
            for key, part in items:
                self._put(part, put, made, key)
        elif base in _SEQUENCES:
            base.extend(made, self._at_first(base.__iter__(value)))
            for i, part in enumerate(base.__iter__(value)):
                if type(part) not in self._atoms:
                    self._put(part, base.__setitem__, made, i)
        else:
            copies = [self._of(part) for part in list(base.__iter__(value))]
            self._last.append(lambda: [base.add(made, part) for part in copies])
        self._reads.append(functools.partial(_keys_and_values if base in _MAPPINGS else base.__iter__, made))
        if type(made) is not base or attributes_of(value):
            self._fill(made, value)

    def _put_item(self, base: Any, made: Any, key: Any, part: Any) -> None:
        base.__setitem__(made, self._key(key), part)

    def _put_keys(self) -> None:
        """Put the copies of keys into dicts that were filled before these copies were made."""
        for made, base in self._keyed:
            items = list(base.items(made))
            if any(self._key(key) is not key for key, _ in items):
                for key, part in items:
                    base.__delitem__(made, key)
                    self._put_item(base, made, key, part)

    def _key(self, key: Any) -> Any:
        """A key of a dict: the copy of a module, and of what the model holds elsewhere as well. Other keys are shared,
        because a global name may look them up."""
        kind = type(key)
        if kind is tuple:
            keys = tuple(map(self._key, key))
            return key if all(map(operator.is_, key, keys)) else keys
        if kind is int:
            return self._identities.get(key, key)
        if issubclass(kind, nn.Module):
            copied = self._of(key)
            self._copies[id(copied)] = copied  # the key of a copy is asked for as well
            return copied
        return self._copies.get(id(key), key)

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
        cached = functools.lru_cache(**value.cache_parameters())(self._of(value.__wrapped__))
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

    def _bound(self, value: Any) -> Any:
        """A copy of what a function is bound to; large objects, such as a dataset, are shared."""
        return value if self._is_large(value) else self._of(value)

    def _is_large(self, value: Any) -> bool:
        return len(parts(value, self._most_parts)) > self._most_parts

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
            self._track_state(made)
            return made
        made = self._copies[id(value)] = np.empty_like(value)
        self._fill_later(self._fill_array, made, value)
        return made

    def _fill_array(self, made: Any, value: Any) -> None:
        made[...] = value
        for i, part in enumerate(value.flat):
            if type(part) not in self._atoms:
                self._put(part, np.ndarray.__setitem__, made, np.unravel_index(i, value.shape))
        self._reads.append(lambda: list(made.flat))

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
        made = _tried(kind.copy if are_pixels(kind) else copy_of_file, value)
        if made is NOTHING:
            return value
        self._track_state(made)
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
        reduced = _tried(_reduced, value, kind)
        if not isinstance(reduced, tuple):  # a global name, or an error
            return value if isinstance(reduced, str) else NOTHING
        make, args, state, items, pairs = (*reduced, None, None, None)[:5]
        items, pairs = list(items or ()), list(pairs or ())
        self._lasting.append((args, state, items, pairs))  # copies are known by the identity of their originals
        made = _tried(make, *self._complete_of(args))
        if id(value) in self._copies:  # a part of its arguments refers to it
            return self._copies[id(value)]
        if made is NOTHING or made is value:
            return made
        self._copies[id(value)] = made
        if hasattr(made, "__setstate__") and state is not None:
            if _tried(made.__setstate__, *self._complete_of([state])) is NOTHING:
                del self._copies[id(value)]
                return NOTHING
        else:
            for part in state if isinstance(state, tuple) else (state,):
                for key, one in part.items() if isinstance(part, dict) else ():
                    self._put(one, object.__setattr__, made, key)
        for part in self._complete_of(items):
            made.append(part)
        for key, part in pairs:
            self._put(part, operator.setitem, made, self._key(key))
        self._track_inside(made)
        return made

    def _deep_copy(self, value: Any) -> Any:
        """A copy by the object's own `__deepcopy__`, to which the copies of its tensors and modules are known."""
        inside = [part for part in parts(value, self._most_parts) if issubclass(type(part), (Tensor, nn.Module))]
        memo = {**self._copies, **{id(part): self._of(part) for part in inside}}
        made = _tried(copy.deepcopy, value, memo)
        if made is not NOTHING and made is not value:
            self._lasting.append(memo.pop(id(memo), None))  # originals that deepcopy keeps alive
            self._copies = memo
            for cells in object_cells(made):
                self._fill_array(cells, cells)
            self._track_inside(made)
        return made

    def _track_inside(self, made: Any) -> None:
        """Count all parts of what the code of a class has made among `contents`."""
        found = parts(made, self._most_parts)
        if len(found) > self._most_parts:
            self._reads.append(_unknown)
        copied = {id(tensor) for tensor, _ in self.tensors}
        for part in found:
            kind = type(part)
            if issubclass(kind, Tensor):
                storage: Any = NOTHING if id(part) in copied else _tried(storage_of, part)
                self.tensors += [(part, storage._cdata)] if storage is not NOTHING else []
            elif not issubclass(kind, (nn.Module, type)):
                base = next((one for one in _WITH_ELEMENTS if issubclass(kind, one)), None)
                if base is not None:
                    self._reads.append(functools.partial(_keys_and_values if base is dict else base.__iter__, part))
                self._track(part)
                self._track_state(part)

    def _track_state(self, made: Any) -> None:
        """Count what an object keeps outside of attributes and slots."""
        if has_hidden_state(made):
            self._reads.append(functools.partial(_state, made))


def _state(value: Any) -> list[Any]:
    """A number for the state of an object that is written in C."""
    found = _tried(_in_bytes, value)
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


def _keys_and_values(mapping: Any) -> list[Any]:
    """What a dict or a weak dict holds, by the methods of Python's own class, in its order."""
    base: Any = next(one for one in type(mapping).__mro__ if one in _MAPPINGS)
    return [*base.keys(mapping), *base.values(mapping)]


def _address(tensor: Tensor) -> Any:
    """Where a tensor's numbers are; `NOTHING` where torch does not tell."""
    return _tried(Tensor.data_ptr, tensor)
