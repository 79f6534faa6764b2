"""A cache by model, so that watching a training run pays for checks once; and the traits of a model that it is keyed
by."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from local_elasticity.engine.object_parts import attributes_of, proxied

if TYPE_CHECKING:
    from local_elasticity.engine.problem import BoundProblem

T = TypeVar("T")

MOST_FINDINGS = 64
"""Entries kept for one model; the oldest are dropped first. An `output` function that is redefined for every call adds
new entries each time."""


class ModelCache(Generic[T]):
    """Findings by model and circumstances; they are dropped with the model. They are valid as long as the model has the
    same modules, steps the same parameters and is read by the same output function; weights may differ. Unhashable
    models are not cached.
    """

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Any, dict[Any, T]] = WeakKeyDictionary()

    def get(self, bound: BoundProblem, circumstances: Any) -> T | None:
        return self._known(bound).get((bound.made_of, circumstances))

    def put(self, bound: BoundProblem, circumstances: Any, finding: T) -> None:
        known = self._known(bound)
        known[bound.made_of, circumstances] = finding
        while len(known) > MOST_FINDINGS:
            known.pop(next(iter(known)), None)

    def _known(self, bound: BoundProblem) -> dict[Any, T]:
        try:
            return self._of.setdefault(bound.problem.model, {})
        except TypeError:
            return {}


MOST_ENTRIES = 64
"""Longer containers count by their length alone."""

_OF_EVERY_MODULE = frozenset(nn.Module().__dict__)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_VALUES = (bool, int, float, complex, str, bytes, type(None))
_PLAIN = frozenset(_VALUES)
_OWN: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: lambda value: bytes(memoryview(value)),
}
"""Numbers and words of Python's own classes, from those of classes that derive from them."""


def traits(model: Callable[..., Any]) -> Hashable:
    """The classes of all modules and the attributes and hooks that decide what their forward pass does.

    The result is equal as long as these stay the same, and holds no references to the model.
    """
    return tuple(_of_module(module) for module in model.modules()) if isinstance(model, nn.Module) else ()


def _of_module(module: nn.Module) -> Hashable:
    own = tuple((key, stand_in(value)) for key, value in module.__dict__.items() if key not in _OF_EVERY_MODULE)
    switches = tuple((key, b.item()) for key, b in module._buffers.items() if b is not None and _is_switch(b))
    hooks = tuple(stand_in(hook) for name in _HOOKS for hook in getattr(module, name).values())
    return _reference(type(module)), _of_class(type(module)), own, switches, hooks


def _of_class(kind: type) -> Hashable:
    """Numbers and words that are attributes of the user's own classes."""
    users = [base for base in kind.__mro__ if not base.__module__.startswith(("torch.", "builtins"))]
    items = [item for base in users for item in vars(base).items()]
    return tuple((key, stand_in(value)) for key, value in items if issubclass(type(value), _VALUES))


def _is_switch(buffer: Tensor) -> bool:
    """Whether a buffer is one number that can be read without waiting for a GPU, and no count of batches."""
    return buffer.device.type == "cpu" and buffer.numel() == 1 and buffer.dtype == torch.bool


def stand_in(value: Any, depth: int = 4) -> Hashable:
    """Equal for as long as a value is the same: itself for numbers and words, a weak reference to a function, the
    contents of a container or object. It does not run the user's methods, and holds no references to classes.

    >>> stand_in([1, "a"]) == stand_in([1, "a"]), stand_in([1]) == stand_in([True])
    (True, False)
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind in weakref.ProxyTypes:
        return kind, stand_in(proxied(value), depth)
    if issubclass(kind, Tensor):
        return Tensor, () if value.is_nested else tuple(value.shape), value.dtype
    for base, own in _OWN.items():
        if issubclass(kind, base):
            return _reference(kind), own(value), _of_attributes(value, depth)
    for elements in (list, tuple, dict):
        if issubclass(kind, elements):
            parts = list(dict.items(value) if issubclass(kind, dict) else elements.__iter__(value))
            inside = parts if depth and len(parts) <= MOST_ENTRIES else []
            return _reference(kind), len(parts), tuple(stand_in(part, depth - 1) for part in inside)
    return _reference(value) if callable(value) else (_reference(kind), _of_attributes(value, depth))


def _of_attributes(value: Any, depth: int) -> Hashable:
    attributes = attributes_of(value) if depth else None
    return None if attributes is None else stand_in(attributes, depth - 1)


def _reference(value: Any) -> Hashable:
    kind: Any = type(value)
    if issubclass(kind, types.MethodType):
        return _reference(value.__self__), _reference(value.__func__)
    plain = kind.__eq__ is object.__eq__ and kind.__hash__ is object.__hash__
    try:
        return weakref.ref(value) if plain else _Same(value)
    except TypeError:
        return kind.__qualname__


class _Same(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that is equal for the very same object. The object's own methods may compare otherwise."""

    __slots__ = ("place",)

    def __init__(self, value: Any) -> None:
        self.place = id(value)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Same) and self() is other() is not None)

    def __hash__(self) -> int:
        return self.place
