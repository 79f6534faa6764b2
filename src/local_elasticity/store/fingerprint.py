"""Fingerprints: any Python value as a short text that is the same in every process for as long as the value is.

A value is taken apart, and its parts in turn, down to numbers, texts and bytes. What libraries define counts by its
name, since their versions are noted elsewhere; what a user defines counts by its code.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import inspect
import logging
import sys
import threading
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

logger = logging.getLogger("local_elasticity")

PLAIN = (type(None), bool, int, float, complex, str, bytes)
EMPTY = types.CellType()
OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""Attributes that do not affect what a module computes, or are fingerprinted separately, such as `training`."""

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""Where a module keeps the functions that may change what it computes."""

WHEN_MADE = ("__new__", "__init__", "__post_init__")
"""Methods that run when an object is made, and not later."""

CHANGE = frozenset({"append", "extend", "insert", "pop", "clear", "add", "update", "setdefault", "remove", "discard"})
"""Methods that change a list, a dictionary or a set."""

OF_A_RUN = (logging.Logger, threading.Thread, type(threading.Lock()), type(threading.RLock()), weakref.ref)
"""What private attributes may hold that says nothing of what is computed."""


def fingerprint(value: Any, *, apart: Iterable[Any] = ()) -> str:
    """Of a tensor its bytes; of a function its code, defaults, and what it closes over and names; of an object or a
    module its class and attributes, private ones included; of a module also its forward and backward hooks, in order.
    What is in `apart` is ignored. The fingerprint of a hook that collects values changes when it has collected some:
    empty or remove it before a store is resumed. Private attributes that the code of a library sets are not read, and
    neither are loggers, locks,
    threads and weak references in private attributes: they belong to a run, and not to what a model computes.

    Anything else, such as a random generator, counts by its type, with a warning.

    >>> from functools import partial
    >>> def scaled(c): return lambda x: c * x
    >>> fingerprint(scaled(1)) == fingerprint(scaled(1)), fingerprint(scaled(1)) == fingerprint(scaled(2))
    (True, False)
    >>> fingerprint(partial(round, ndigits=1)) == fingerprint(partial(round, ndigits=2))
    False
    """
    known = {id(one): (one, "apart") for one in apart}

    def read(one: Any) -> str:
        if isinstance(one, PLAIN):
            return f"{type(one).__name__} {one!r}"
        if id(one) not in known:
            known[id(one)] = one, "inside itself"
            text = "\n".join([_name(type(one)), *map(read, parts(one))])
            known[id(one)] = one, hashlib.sha256(text.encode()).hexdigest()[:16]
        return known[id(one)][1]

    return hashlib.sha256(read(value).encode()).hexdigest()[:16]


@functools.singledispatch
def parts(value: Any) -> Iterable[Any]:
    """What a value is made of: here, of an object, its class and attributes."""
    if hasattr(value, "__dict__") or hasattr(value, "__slots__"):
        return _name(value), type(value), _attributes(value)
    if " at 0x" not in repr(value):
        return (repr(value),)
    if not hasattr(value, "__qualname__"):
        _warn(_name(type(value)))
    return (_name(value),)


@parts.register
def _(value: Tensor) -> Iterable[Any]:
    hooks = tuple((value._backward_hooks or {}).values())
    try:
        content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    except (RuntimeError, TypeError):  # a tensor without values of its own, as on the device meta or within vmap
        _warn(f"tensor on {value.device}, {value.layout}")
        return str(value.dtype), tuple(value.shape), *hooks
    return str(value.dtype), tuple(value.shape), hashlib.sha256(content.data).hexdigest(), *hooks


@parts.register
def _(value: np.ndarray) -> Iterable[Any]:
    plain = value.dtype.kind in "biufc"
    content = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest() if plain else value.tolist()
    return str(value.dtype) if plain else "", value.shape, content


@parts.register(list)
@parts.register(tuple)
def _(value: Iterable[Any]) -> Iterable[Any]:
    return value


@parts.register(set)
@parts.register(frozenset)
def _(value: Iterable[Any]) -> Iterable[Any]:
    return sorted(map(fingerprint, value))


@parts.register
def _(value: Mapping) -> Iterable[Any]:  # type: ignore[type-arg]
    return [part for item in value.items() for part in item]


@parts.register
def _(value: functools.partial) -> Iterable[Any]:  # type: ignore[type-arg]
    return value.func, value.args, value.keywords


@parts.register
def _(value: types.MethodType) -> Iterable[Any]:
    return value.__func__, value.__self__


@parts.register
def _(value: types.BuiltinMethodType) -> Iterable[Any]:
    """Of a method in C, such as `collected.append`, also the container that it changes."""
    held = value.__self__
    return (_name(value), held) if isinstance(held, (list, dict, set)) else parts.dispatch(object)(value)


@parts.register
def _(value: types.FunctionType) -> Iterable[Any]:
    held = [cell.cell_contents for cell in value.__closure__ or () if cell != EMPTY]
    if _of_a_library(value):
        return _name(value), held
    named = {name: value.__globals__[name] for name in _globals(value.__code__) if name in value.__globals__}
    return value.__code__, value.__defaults__, value.__kwdefaults__, held, named


@parts.register
def _(value: types.CodeType) -> Iterable[Any]:
    return value.co_code, value.co_consts, value.co_names, value.co_varnames, value.co_freevars


@parts.register
def _(value: types.ModuleType) -> Iterable[Any]:
    return (value.__name__,)


@parts.register
def _(value: type) -> Iterable[Any]:
    if _of_a_library(value):
        return (_name(value),)
    return _name(value), value.__bases__, dict(_members(value))


@parts.register
def _(value: property) -> Iterable[Any]:
    return value.fget, value.fset


@parts.register(staticmethod)
@parts.register(classmethod)
def _(value: Any) -> Iterable[Any]:
    return (value.__func__,)


@parts.register
def _(value: nn.Module) -> Iterable[Any]:
    attributes = {name: held for name, held in _attributes(value).items() if name not in OF_EVERY_MODULE}
    return type(value), attributes, value._parameters, value._buffers, value._modules, *_hooks(value)


def _hooks(module: nn.Module) -> Iterator[Any]:
    """What runs before and after a module's forward and backward, with how it is called."""
    for kind in HOOKS:
        for key, hook in getattr(module, kind).items():
            flags = [key in getattr(module, flag, ()) for flag in (f"{kind}_with_kwargs", f"{kind}_always_called")]
            yield kind, hook, *flags


def _attributes(value: Any) -> dict[str, Any]:
    """All of them where the class is a user's from the root on. Where a user's class extends a library's, private ones
    that the library sets, or whose class it defines, count where they are plain: others may lead to all that a run
    consists of. Of a library's own class private ones do not count.
    """
    kind = type(value)
    slots = [name for one in kind.__mro__ for name in getattr(one, "__slots__", ()) if hasattr(value, name)]
    held = {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots}}
    libraries = [one for one in kind.__mro__ if one is not object and _of_a_library(one)]
    if not libraries:
        return held
    if _of_a_library(kind):
        return {name: one for name, one in held.items() if name[0] != "_"}
    theirs = frozenset().union(*map(_set_by, libraries))
    packages = {_package(one) for one in libraries} - {"torch"}
    return {
        name: one
        for name, one in held.items()
        if name[0] != "_" or _counts(one, name in theirs or _package(type(one)) in packages)
    }


def added_attributes(value: Any, package: str) -> dict[str, Any]:
    """Those that no class of this package sets, by name in order."""
    theirs = frozenset().union(*(_set_by(one) for one in type(value).__mro__ if _package(one) == package))
    return {name: one for name, one in sorted(_attributes(value).items()) if name not in theirs}


def lasting_attributes(value: Any, package: str) -> dict[str, Any]:
    """Of the added attributes those that stay what they are when an object is made: no other method sets them."""
    kinds = [one for one in type(value).__mro__ if not _of_a_library(one)]
    later = [member for one in kinds for name, member in vars(one).items() if name not in WHEN_MADE]
    changing = _set_in(later)
    return {name: one for name, one in added_attributes(value, package).items() if name not in changing}


def given_attributes(value: Any) -> dict[str, Any]:
    """Of an object of a user's class the attributes that it was given when it was made, and that no other method sets:
    the fields of a dataclass, and what the lines of its `__init__` make of their arguments.
    """
    kinds = [one for one in type(value).__mro__ if not _of_a_library(one)]
    made = [vars(one)["__init__"] for one in kinds if isinstance(vars(one).get("__init__"), types.FunctionType)]
    names = {name for init in made for name in _from_arguments(init.__code__)}
    if dataclasses.is_dataclass(value):
        names |= {field.name for field in dataclasses.fields(value) if field.init}
    later = _set_in(member for one in kinds for name, member in vars(one).items() if name not in WHEN_MADE)
    held = getattr(value, "__dict__", {})
    return {name: held[name] for name in sorted(names - later) if name in held}


def _from_arguments(code: types.CodeType) -> Iterator[str]:
    """The attributes that are set on lines which read an argument other than the first."""
    kinds = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS
    count = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & kind) for kind in kinds)
    arguments = set(code.co_varnames[1:count])
    starts = dict(dis.findlinestarts(code))
    read, stored, line = set[int | None](), list[tuple[int | None, str]](), None
    for step in dis.get_instructions(code):
        line = starts.get(step.offset, line)
        names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and arguments.intersection(names):
            read.add(line)
        elif step.opname == "STORE_ATTR":
            stored.append((line, step.argval))
    yield from (name for line, name in stored if line in read)


def changes_containers(code: types.CodeType) -> bool:
    """Whether code sets items, or names a method that changes a container."""
    return bool(CHANGE.intersection(code.co_names)) or any(
        step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") for step in dis.get_instructions(code)
    )


def _counts(value: Any, of_a_library: bool) -> bool:
    """Whether a private attribute belongs to what is computed."""
    return isinstance(value, (*PLAIN, Tensor)) or not (of_a_library or isinstance(value, OF_A_RUN))


def _package(kind: Any) -> str:
    return str(kind.__module__).partition(".")[0]


@functools.cache
def _set_by(library: type) -> frozenset[str]:
    """The names of the attributes that the methods and properties of a class set."""
    return _set_in(vars(library).values())


def _set_in(members: Iterable[Any]) -> frozenset[str]:
    found: set[str] = set()
    for member in members:
        setter = member.fset if isinstance(member, property) else getattr(member, "__func__", member)
        if isinstance(function := inspect.unwrap(setter) if callable(setter) else None, types.FunctionType):
            found.update(_stored(function.__code__))
    return frozenset(found)


def _stored(code: types.CodeType) -> Iterator[str]:
    """The attributes that code sets, its inner functions' included."""
    yield from (step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR")
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _stored(inner)


def _members(value: type) -> Iterator[tuple[str, Any]]:
    """Methods, and attributes that a class gives to its objects."""
    for name, member in vars(value).items():
        if not name.startswith("__") or isinstance(member, types.FunctionType):
            yield name, member


def _globals(code: types.CodeType) -> Iterator[str]:
    """The global names that code reads, its inner functions' included."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _globals(inner)


def _warn(kind: str) -> None:
    logger.warning("store: a %s cannot be fingerprinted; the same call resumes even where it has changed", kind)


def _name(value: Any) -> str:
    kind = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(kind, '__module__', '')}.{kind.__qualname__}"


def _of_a_library(value: Any) -> bool:
    top = _package(value)
    file = str(getattr(sys.modules.get(value.__module__), "__file__", None))
    return top in (*sys.stdlib_module_names, "local_elasticity") or "site-packages" in file or "dist-packages" in file
