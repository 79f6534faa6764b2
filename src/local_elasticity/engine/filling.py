"""Copies that are empty at first, and filled one after another; what is put into them, and what is put again.

A cycle of objects so ends at an empty object, and a long chain needs no deep recursion.
"""

from __future__ import annotations

import functools
import operator
import types
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from local_elasticity.engine.copied_memory import CopiedMemory
from local_elasticity.engine.copied_states import CopiedStates
from local_elasticity.engine.guard import raise_interruption
from local_elasticity.engine.object_parts import ATOMS, NOTHING, attributes_of, cell_contents, members, parts, slot

MOST_PARTS = 200
"""Objects with more parts than this are shared, not copied. A module may refer to a trainer, which is a whole program.
"""

Put = Callable[[Any, Any, Any], object]
"""How a value is put into an object at a key, such as `dict.__setitem__`."""


class Filling(ABC):
    """Copies by the identity of their originals; a class that derives from it says what an empty copy is. Parts that
    are tensors with a name can be put again.

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
        self._states = CopiedStates()
        self.tensors = self._states.tensors
        self.named: dict[str, Tensor] = {}
        self._names, self._known, self._identities = names or {}, known or {}, identities or {}
        self._memory, self._most_parts, self._argument = CopiedMemory(dtype), most_parts, argument
        self._atoms = ATOMS - {int} if identities else ATOMS
        self._copies: dict[int, Any] = dict(self._known)
        self._cells: dict[int, types.CellType] = {}
        self._marks: dict[str, dict[str, Any]] = {}
        self._marked: dict[str, Tensor] = {}
        self._slots: dict[str, list[tuple[Put, Any, Any]]] = defaultdict(list)
        self._lasting: list[Any] = []
        self._waiting: list[Callable[[], object]] = []
        self._last: list[Callable[[], object]] = []
        self._keyed: list[tuple[Any, Any]] = []
        self._keys_are_copied = False
        self._under_way: set[int] = set()

    def contents(self) -> list[list[Any]]:
        """What every object holds now, for a comparison by identity; memory of other kinds than tensors as a number;
        without the lists that recurrent layers build again when their weights are put."""
        cells = [[cell_contents(cell)] for cell in self._cells.values()]
        marks = [[vars(tensor).get(key) for key in self._marks[name]] for name, tensor in self._marked.items()]
        return [*cells, *marks, *self._states.contents()]

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
        self._keys_are_copied = False
        try:
            made = self._of(value)
            self._complete()
            self._complete_keys()
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

    @abstractmethod
    def _copy(self, value: Any, kind: type) -> Any:
        """A copy of an object of this class, which may be empty until what waits to be filled is filled."""

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

    def _put_item(self, base: Any, made: Any, key: Any, part: Any) -> None:
        """At first at the original key: a copy may be empty, and then has another hash."""
        base.__setitem__(made, self._key(key) if self._keys_are_copied else key, part)

    def _complete_keys(self) -> None:
        """Put the copies of keys into dicts, in place of the originals. Dicts with other keys that are objects are
        looked at again, when these are copied later."""
        done = 0
        while done < len(self._keyed):  # copies of modules that are keys alone may hold further dicts
            made, base = self._keyed[done]
            done += 1
            for key in list(base.keys(made)):
                self._key(key)
            self._complete()
        left = []
        for made, base in self._keyed:
            items = [(key, self._key(key), part) for key, part in base.items(made)]
            if any(copied is not key for key, copied, _ in items):
                for key, copied, part in items:
                    base.__delitem__(made, key)
                    base.__setitem__(made, copied, part)
            if any(copied is key and type(key) not in self._atoms for key, copied, _ in items):
                left.append((made, base))
        self._keyed, self._keys_are_copied = left, True

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
        self._states.of_attributes(made)

    def _at_first(self, values: Iterable[Any]) -> list[Any]:
        """What is in a copy before it is filled: names that a hash may be computed from, and no part of the user's."""
        return [value if type(value) in self._atoms else None for value in values]

    def _fill_slots(self, made: Any, value: Any) -> None:
        for member in members(type(value)):
            part = slot(value, member)
            if part is not NOTHING:
                self._put(part, _set_slot, made, member)

    def _bound(self, value: Any) -> Any:
        """A copy of what a function is bound to; large objects, such as a dataset, are shared."""
        return value if self._is_large(value) else self._of(value)

    def _is_large(self, value: Any) -> bool:
        return len(parts(value, self._most_parts)) > self._most_parts


def _set_slot(owner: Any, member: types.MemberDescriptorType, value: Any) -> None:
    member.__set__(owner, value)
