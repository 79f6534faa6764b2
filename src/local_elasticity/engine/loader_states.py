"""Reading a DataLoader without changing it: its generators and what its samplers hold are put back, and an epoch of its
persistent workers continues."""

from __future__ import annotations

import copy
import operator
import random
import weakref
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import partial
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler

from local_elasticity.engine.guard import Access, raise_interruption, random_states
from local_elasticity.engine.object_parts import cell_contents

T = TypeVar("T")

MOST_PARTS, MOST_TRANSFORMS = 50_000, 32
"""In how many parts of a loader, the nearest first, and in lists of what length its generators are looked for."""

LARGEST_KEPT = 1 << 26
"""Bytes up to which an array, a tensor or a list of a sampler or an iterable dataset is copied, to be put back."""

CONTAINERS: tuple[Any, ...] = (list, deque, OrderedDict, dict, set, bytearray, array)

PLAIN = (int, float, complex, str, bytes, np.generic, type(None))
"""What holds nothing."""

PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
"""What may stand for nothing any more."""

END: Any = object()
"""What comes after the last batch."""


@contextmanager
def kept_states(examples: Any) -> Iterator[None]:
    """The random generators of a DataLoader, its samplers and its dataset put back, and what samplers and an iterable
    dataset hold. Reading the examples must not reorder a training run that continues with the same loader.
    """
    states = _states_of(examples)
    before, back = [get() for get, _ in states], False
    try:
        try:
            yield
        finally:
            back = _put(states, before)
    finally:
        if not back:  # interrupted
            _put(states, before)


def read_apart(batches: Iterable[Any], read: Callable[[Any], T]) -> Iterator[T]:
    """What `read` makes of each batch. It and the batches use their own random states, which start as copies of the
    global state and the loader's, and so do its samplers. The caller's are unchanged between any two batches.
    """
    states = [*random_states(), *_states_of(batches)]
    own = [get() for get, _ in states]
    under_way: Iterator[Any] | None = None
    while True:
        outside, back = [get() for get, _ in states], False
        try:
            try:
                _put(states, own)
                under_way = iter(beside(batches)) if under_way is None else under_way
                batch = next(under_way, END)
                found = END if batch is END else read(batch)
                own = [get() for get, _ in states]
            finally:
                back = _put(states, outside)
        finally:
            if not back:  # interrupted
                _put(states, outside)
        if found is END:
            return
        yield found


def _put(states: list[Access], values: list[Any]) -> bool:
    """All of them, whatever one of them raises."""
    errors = []
    for (_, put), value in zip(states, values, strict=True):
        try:
            put(value)
        except Exception as error:  # what an object of the user's raises that cannot be written
            errors.append(error)
    if errors:
        raise errors[0]
    return True


def beside(batches: Any) -> Any:
    """A copy of a DataLoader, whose persistent workers may be in the middle of an epoch; anything else as it is."""
    if not isinstance(batches, DataLoader):
        return batches
    made = copy.copy(batches)
    vars(made)["_iterator"] = None
    return made


def _states_of(examples: Any) -> list[Access]:
    """Of all generators in a loader, and of what it iterates over with the containers in that."""
    found: list[Access] = []
    waiting = deque([(examples, False)])
    seen: dict[int, Any] = {}  # with what they are the ids of, so that none is used again
    indexed = getattr(examples, "dataset", examples)
    while waiting and len(seen) < MOST_PARTS:
        value, iterated = waiting.popleft()
        if id(value) in seen or isinstance(value, PROXIES):
            continue
        seen[id(value)] = value
        of_order = isinstance(value, (Sampler, IterableDataset))
        iterated = of_order or (iterated and value is not indexed and _is_simple(value))
        state = _state_of_generator(value) or (_state_of_object(value) if iterated else None)
        found += [state] if state is not None else []
        if isinstance(value, DataLoader):
            waiting += [(part, True) for part in (value.batch_sampler, value.sampler)]
        waiting += [(part, iterated) for part in _parts_of(value, MOST_PARTS if iterated else MOST_TRANSFORMS)]
    return found


def _is_simple(value: Any) -> bool:
    """Whether something only holds values: a container, an iterable, a dataclass. What a queue or a thread does with
    its attributes is not known."""
    return hasattr(type(value), "__iter__") or is_dataclass(value) or isinstance(value, SimpleNamespace)


def _state_of_generator(value: Any) -> Access | None:
    if isinstance(value, torch.Generator):
        return value.get_state, value.set_state
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return value.getstate, value.setstate
    if isinstance(value, np.random.RandomState):
        return value.get_state, value.set_state
    if isinstance(value, np.random.Generator):
        value = value.bit_generator
    if isinstance(value, np.random.BitGenerator):
        return partial(getattr, value, "state"), partial(setattr, value, "state")
    return None


def _state_of_object(value: Any) -> Access | None:
    """What a container holds, or the attributes of another object; None where it cannot be read."""
    kind = next((kind for kind in CONTAINERS if isinstance(value, kind)), None)
    if kind is not None:
        small = 8 * kind.__len__(value) <= LARGEST_KEPT
        return (partial(_items, kind, value), partial(_put_items, kind, value)) if small else None
    if isinstance(value, np.ndarray):
        return (value.copy, partial(_put_array, value)) if value.nbytes <= LARGEST_KEPT else None
    if isinstance(value, Tensor):
        plain = value.layout == torch.strided and value.device.type != "meta"
        plain = plain and not (value.is_nested or value.is_quantized)
        small = plain and value.nbytes <= LARGEST_KEPT
        return (value.detach().clone, partial(_put_tensor, value)) if small else None
    slots = _slots_of(value)
    if isinstance(value, (type, ModuleType, FunctionType)) or not (slots or hasattr(value, "__dict__")):
        return None
    return partial(_attributes, value, slots), partial(_put_attributes, value, slots)


def _items(kind: Any, value: Any) -> list[Any]:
    """What a container holds, keys and values of a dict by turns, read by the methods of the container itself: those of
    a class made from it may do something else."""
    found = list(kind.__iter__(value))
    if kind in (dict, OrderedDict):
        return [part for key in found for part in (key, kind.__getitem__(value, key))]
    return found


def _put_items(kind: Any, value: Any, before: list[Any]) -> None:
    """The same into it, where it holds something else now; written by its own methods too (`Counter.update` adds)."""
    now = _items(kind, value)
    same = operator.eq if kind in (bytearray, array) else operator.is_
    if len(now) == len(before) and (all(map(same, now, before)) or (kind is set and set(now) == set(before))):
        return
    if kind is list:
        list.__setitem__(value, slice(None), before)
    elif kind in (bytearray, array):
        kind.__setitem__(value, slice(None), kind(before) if kind is bytearray else array(value.typecode, before))
    else:
        kind.clear(value)
        if kind in (dict, OrderedDict):
            kind.update(value, zip(before[::2], before[1::2], strict=True))
        else:
            (kind.extend if kind is deque else kind.update)(value, before)


def _put_array(value: np.ndarray, before: np.ndarray) -> None:
    if not value.flags.writeable or value.shape != before.shape:
        return
    objects = value.dtype.hasobject
    same = all(map(operator.is_, value.flat, before.flat)) if objects else value.tobytes() == before.tobytes()
    if not same:
        value[...] = before


def _put_tensor(value: Tensor, before: Tensor) -> None:
    same = value.shape != before.shape or torch.allclose(value.detach(), before, rtol=0, atol=0, equal_nan=True)
    if not same:
        value.detach().copy_(before)


def _slots_of(value: Any) -> list[str]:
    """The names of attributes in slots, private ones as the class keeps them."""
    found = []
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{kind.__name__.lstrip('_')}{name}" if private else name)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _attributes(owner: Any, slots: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    in_slots = {}
    for name in slots:
        try:
            in_slots[name] = getattr(owner, name)
        except Exception as error:  # empty, or hidden by a property that raises
            raise_interruption(error)
    return dict(getattr(owner, "__dict__", {})), in_slots


def _put_attributes(owner: Any, slots: list[str], before: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """An interrupt at any moment leaves at least those that were there."""
    attributes, in_slots = before
    held = getattr(owner, "__dict__", {})
    held.update(attributes)
    for name in held.keys() - attributes.keys():
        del held[name]
    now = _attributes(owner, slots)[1]
    for name in slots:
        if name in in_slots and now.get(name) is not in_slots[name]:
            object.__setattr__(owner, name, in_slots[name])
        elif name in now and name not in in_slots:
            object.__delattr__(owner, name)


def _parts_of(value: Any, most: int) -> list[Any]:
    """What an object, a container of at most so many parts, or a function holds, where a generator may be."""
    if isinstance(value, (type, ModuleType, Tensor, np.ndarray, str, bytes)):
        return []
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, BuiltinMethodType):  # generator.normal
        return [value.__self__] if not isinstance(value.__self__, ModuleType) else []
    if isinstance(value, FunctionType):
        held = [cell_contents(cell) for cell in value.__closure__ or ()]
        return [*held, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, (list, tuple, dict, set, frozenset, deque)):
        held = [part for part in (value.values() if isinstance(value, dict) else value) if not isinstance(part, PLAIN)]
        return held if len(held) <= most else []
    attributes, in_slots = _attributes(value, _slots_of(value))
    return [*attributes.values(), *in_slots.values()]
