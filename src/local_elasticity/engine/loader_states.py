"""Reading a DataLoader without changing it: its generators and the attributes of its samplers are put back, and an
epoch of its persistent workers continues."""

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

END: Any = object()
"""What comes after the last batch."""


@contextmanager
def kept_generators(examples: Any) -> Iterator[None]:
    """The random generators of a DataLoader, its samplers and its dataset put back, and the attributes of samplers and
    of an iterable dataset.
    Reading the examples must not reorder a training run that continues with the same loader.
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
    found, waiting = [], deque([examples])
    seen: dict[int, Any] = {}  # with what they are the ids of, so that none is used again
    while waiting and len(seen) < MOST_PARTS:
        value = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        state = _state_of(value)
        if state is not None:
            found.append(state)
        waiting += _parts_of(value)
    return found


def _state_of(value: Any) -> Access | None:
    """The state of a random generator, or of a sampler or an iterable dataset, which may count its epochs."""
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
    if isinstance(value, (Sampler, IterableDataset)):
        return vars(value).copy, partial(_put_attributes, value)
    return None


def _put_attributes(owner: Any, before: dict[str, Any]) -> None:
    """An interrupt at any moment leaves at least those that were there."""
    vars(owner).update(before)
    for name in vars(owner).keys() - before.keys():
        del vars(owner)[name]


def _parts_of(value: Any) -> list[Any]:
    """What an object, a container or a function holds, where a generator may be."""
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
        return [] if len(value) > MOST_TRANSFORMS else list(value.values() if isinstance(value, dict) else value)
    slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ()) if name != "__dict__"]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name) for name in slots if hasattr(value, name))]
