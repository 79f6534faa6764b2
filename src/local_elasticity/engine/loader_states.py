"""Reading a DataLoader without changing it: its generators and what its samplers hold are put back, and an epoch of its
persistent workers continues."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler

from local_elasticity.engine.copying import cell_contents
from local_elasticity.engine.guard import Access, random_states

T = TypeVar("T")

MOST_PARTS, MOST_TRANSFORMS = 5000, 32
"""In how many parts of a loader, the nearest first, and in lists of what length its generators are looked for."""

LARGEST_KEPT = 1 << 26
"""Bytes up to which an array, a tensor or a list of a sampler or an iterable dataset is copied, to be put back."""

PLAIN = (int, float, complex, str, bytes, np.generic, type(None))
"""What holds nothing."""

END: Any = object()
"""What comes after the last batch."""


@contextmanager
def kept_generators(examples: Any) -> Iterator[None]:
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
    global state and the loader's. The caller's random states are unchanged between any two batches.
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
    for (_, put), value in zip(states, values, strict=True):
        put(value)
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
    found, waiting = [], deque([(examples, False)])
    seen: dict[int, Any] = {}  # with what they are the ids of, so that none is used again
    indexed = getattr(examples, "dataset", examples)
    while waiting and len(seen) < MOST_PARTS:
        value, iterated = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        of_order = isinstance(value, (Sampler, IterableDataset))
        iterated = of_order or (iterated and value is not indexed and hasattr(type(value), "__iter__"))
        state = _state_of_generator(value) or (_state_of_object(value) if iterated else None)
        if state is not None:
            found.append(state)
        if isinstance(value, DataLoader):
            waiting += [(part, True) for part in (value.batch_sampler, value.sampler)]
        waiting += [(part, iterated) for part in _parts_of(value, MOST_PARTS if iterated else MOST_TRANSFORMS)]
    return found


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
    """What a container holds, or the attributes of another object."""
    if isinstance(value, (list, deque, dict, set, bytearray)):
        small = 8 * len(value) <= LARGEST_KEPT
        return (value.copy, partial(_put_items, value)) if small else None
    if isinstance(value, np.ndarray):
        return (value.copy, partial(_put_array, value)) if value.nbytes <= LARGEST_KEPT else None
    if isinstance(value, Tensor):
        small = value.layout == torch.strided and value.nbytes <= LARGEST_KEPT
        return (value.detach().clone, partial(_put_tensor, value)) if small else None
    slots = _slots_of(value)
    if isinstance(value, (type, ModuleType, FunctionType)) or not (slots or hasattr(value, "__dict__")):
        return None
    return partial(_attributes, value, slots), partial(_put_attributes, value, slots)


def _put_items(value: Any, before: Any) -> None:
    if isinstance(value, (list, bytearray)):
        value[:] = before
    elif isinstance(value, deque):
        value.clear()
        value.extend(before)
    elif isinstance(value, dict) and list(value) == list(before):
        value.update(before)
    elif isinstance(value, dict) or value != before:
        value.clear()
        value.update(before)


def _put_array(value: np.ndarray, before: np.ndarray) -> None:
    if value.flags.writeable and value.shape == before.shape and not np.array_equal(value, before):
        value[...] = before


def _put_tensor(value: Tensor, before: Tensor) -> None:
    if value.shape == before.shape and not torch.equal(value, before):
        value.detach().copy_(before)


def _slots_of(value: Any) -> list[str]:
    names = [name for kind in type(value).__mro__ for name in _as_names(vars(kind).get("__slots__", ()))]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _as_names(slots: Any) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _attributes(owner: Any, slots: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    return dict(getattr(owner, "__dict__", {})), {name: getattr(owner, name) for name in slots if hasattr(owner, name)}


def _put_attributes(owner: Any, slots: list[str], before: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """An interrupt at any moment leaves at least those that were there."""
    attributes, in_slots = before
    held = getattr(owner, "__dict__", {})
    held.update(attributes)
    for name in held.keys() - attributes.keys():
        del held[name]
    for name in slots:
        if name in in_slots:
            object.__setattr__(owner, name, in_slots[name])
        elif hasattr(owner, name):
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
