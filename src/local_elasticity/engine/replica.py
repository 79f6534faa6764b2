"""The replica: a private copy of the user's model, on which everything is measured.

The user's modules are never replaced, switched to another mode or written to, whatever a forward pass does and however
it ends. Weights are shared with the model; a pass that writes weights, inputs or attributes gets copies of them.
"""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from local_elasticity.engine.copying import Shared, StructuralCopy
from local_elasticity.engine.guard import DispatchMode, FunctionMode, interruption
from local_elasticity.engine.half_stored import HalfStored, cast
from local_elasticity.engine.layouts import GroupNormsInTwo, is_group_norm, is_usual
from local_elasticity.engine.object_parts import storage_of

Params = dict[str, Tensor]
T = TypeVar("T")

OUT_OF_REACH = (
    "model: its forward pass, or output=, reads {} from a global name, a tuple or another place outside of its "
    "modules, where a step cannot reach it; read it from self"
)


READING = {torch.ops.aten._local_scalar_dense, torch.ops.aten.equal, torch.ops.aten.is_nonzero}
"""Operations that give Python a value, by which a forward pass may branch."""


@dataclass(frozen=True)
class Effects:
    """What a forward pass writes: its inputs, parameters and buffers by name, attributes of modules. `coarsest` is the
    unit of the coarsest numbers that it computes with, where some are rounded to less than the model has. `reads` says
    whether Python reads values, so that a batch may take another branch than each of its examples. `normalized` says
    whether its result is what a log_softmax gave, and `group_norms` whether group norms on a CPU may read images that
    are not laid out as usual."""

    inputs: bool = False
    tensors: frozenset[str] = frozenset()
    attributes: bool = False
    coarsest: float = 0.0
    reads: bool = False
    normalized: bool = field(default=True, compare=False)
    group_norms: bool = field(default=False, compare=False)

    @property
    def writes(self) -> bool:
        return self.inputs or bool(self.tensors) or self.attributes

    def __or__(self, other: Effects) -> Effects:
        return Effects(
            self.inputs or other.inputs,
            self.tensors | other.tensors,
            self.attributes or other.attributes,
            max(self.coarsest, other.coarsest),
            self.reads or other.reads,
            self.normalized and other.normalized,
            self.group_norms or other.group_norms,
        )


class Replica:
    """A model that is called with its parameters given by name. A plain function f(params, inputs) is not copied.

    Attributes:
        names: of the user's own parameters and buffers, by identity.
        effects: what passes write. As long as it is None, every pass is taken to write everything.
        written: after a pass, the copies of parameters and buffers that it was given to write.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        names: dict[int, str],
        constants: Params,
        *,
        training: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.model, self.names, self.constants = model, names, constants
        self.effects: Effects | None = None
        self.written: Params = {}
        self._options: dict[str, Any] = {"training": training, "dtype": dtype}
        self._kept: StructuralCopy | None = None
        self._observed: tuple[nn.Module, Callable[..., Any]] | None = None

    def __call__(self, params: Params, inputs: Any) -> Any:
        """What the model returns for these inputs at these parameters."""
        effects = self.effects
        if effects is None or effects.inputs:
            inputs = tree_map(Tensor.clone, inputs)
        names = {*self.constants, *params} if effects is None else effects.tensors
        self.written = {name: (params if name in params else self.constants)[name].clone() for name in names}
        if isinstance(self.model, nn.Module) and (self._kept is None or effects is None or effects.attributes):
            self._kept = self.copy()
        if names and self._kept is not None:
            for shared in self._kept.shared:
                stay = shared.named.keys() - params.keys()
                if stay and stay <= names:
                    self.written |= shared.joined({name: self.written[name] for name in stay}) or {}
        with GroupNormsInTwo() if effects is None or effects.group_norms else nullcontext():
            return self._called(self._kept, {**params, **self.written} if names else params, inputs)

    @property
    def coarsest(self) -> float:
        """That of `effects`; 0 as long as nothing is known."""
        return self.effects.coarsest if self.effects else 0.0

    def having(self, constants: Params) -> Replica:
        """The same model with these constants."""
        return Replica(self.model, self.names, constants, **self._options)

    def copy(self) -> StructuralCopy:
        """A new copy of the module that has the constants."""
        from local_elasticity.engine.difference import read_in_one

        assert isinstance(self.model, nn.Module)
        made = StructuralCopy(self.model, self.names, **self._options)
        read_in_one(made.model)
        made.put(self.constants)
        if self._observed is not None:
            module, hook = self._observed
            made.of(module).register_forward_hook(hook)
        return made

    def copies_of(self, *functions: Callable[..., Any] | None) -> list[Any]:
        """Functions of the user's with copies of what they close over or are bound to, the model's parts included."""
        if not any(_has_state(one) for one in functions):
            return list(functions)
        made = self.copy() if isinstance(self.model, nn.Module) else StructuralCopy(nn.Module(), {})
        return [made.of(one) if _has_state(one) else one for one in functions]

    def observe(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Register a forward hook on the copies of a module of the user's."""
        self._observed = module, hook
        self._kept = None

    def module_names(self) -> dict[int, str]:
        """The names of the modules of the copy that ran last, by identity."""
        modules = self._kept.model.named_modules() if self._kept is not None else ()
        return {id(module): name for name, module in modules}

    def identities(self) -> set[int]:
        """The ids of the modules and parameters of the copy that ran last."""
        made = self._kept.model if self._kept is not None else nn.Module()
        return {id(part) for part in (*made.modules(), *made.parameters(), *made.buffers())}

    def watch(self, params: Params, inputs: Any, read: Callable[[Any], Any] = lambda result: result) -> Any:
        """Run the model on these inputs with gradients on, and what reads its result, and note what they write. Nothing
        of it is written, so that the result is right only where `effects` is empty. Raises a ValueError if a
        parameter is read from a place that a step cannot reach.
        """
        try:
            return self._watched(params, inputs, read)
        except Exception as error:  # code that was not made for stored weights, or writes them
            if interruption(error) or not any(isinstance(one, HalfStored) for one in self.constants.values()):
                raise
            self.constants = {name: cast(tensor) for name, tensor in self.constants.items()}
            return self._watched(params, inputs, read)

    def _watched(self, params: Params, inputs: Any, read: Callable[[Any], Any]) -> Any:
        tensors = {name: tensor.data for name, tensor in {**self.constants, **params}.items()}
        of_inputs = {_storage(leaf) for leaf in tree_leaves(inputs)}
        of_tensors: dict[int, list[str]] = defaultdict(list)
        for name, tensor in tensors.items():
            of_tensors[_storage(tensor)].append(name)
        outside = dict(self.names)
        held: set[int] = set()
        made = self.copy() if isinstance(self.model, nn.Module) else None
        if made is not None:
            made.put(tensors)
            held = {_storage(tensor) for tensor, _ in made.tensors}
            of_params = {_storage(made.named[name]): name for name in params if name in made.named}
            aliases = {id(tensor): of_params.get(storage) for tensor, storage in made.tensors}
            outside |= {place: name for place, name in aliases.items() if name is not None}
        before = made.contents() if made is not None else []
        with torch.enable_grad(), Reads(outside, OUT_OF_REACH), _Writes({*of_inputs, *of_tensors, *held}) as writes:
            result = read(self._called(made, tensors, inputs))
        attributes = not writes.seen.isdisjoint(held) or (made is not None and not _same(before, made.contents()))
        if made is not None and not attributes:
            made.put({**self.constants, **params})
        self._kept = None if attributes else made
        swapped = {name for name, tensor in tensors.items() if _storage(tensor) not in of_tensors}
        written = {name for at in writes.seen if at in of_tensors for name in of_tensors[at]} | swapped
        for shared in made.shared if made is not None else ():
            written.update(self._written_as_well(shared, written, writes.seen, params))
        in_inputs = not writes.seen.isdisjoint(of_inputs)
        normalized = writes.normalized(result)
        norms = writes.group_norms([*tree_leaves(inputs), *tensors.values()])
        found = Effects(in_inputs, frozenset(written), attributes, writes.coarsest, writes.reads, normalized, norms)
        self.effects = found if self.effects is None else self.effects | found
        return result

    def _written_as_well(self, shared: Shared, written: set[str], seen: set[int], params: Params) -> Collection[str]:
        """Constants whose memory a pass writes by another name, or by a tensor that has none."""
        names = [name for name in shared.named if name not in params]
        by_copies = any(_storage(copied) in seen for copied in shared.copies)
        if not names or (written.isdisjoint(names) and not by_copies):
            return ()
        if shared.joined({name: self.constants[name] for name in names}) is None:
            raise ValueError(
                f"model: its forward pass writes {names[0]}, which shares memory with a tensor of another type or "
                "layout; give each a memory of its own"
            )
        return names

    def watch_again(self, call: Callable[[], T]) -> T:
        """What a later call returns, having noted whether it writes attributes that the watched pass did not."""
        kept = self._kept
        before, versions = kept.contents() if kept else [], [tensor._version for tensor in self.constants.values()]
        result = call()
        for (name, tensor), version in zip(self.constants.items(), versions, strict=True):
            if tensor._version != version:
                raise ValueError(
                    f"model: its forward pass writes {name} only with gradients off, which is not followed"
                )
        if self._kept is kept is not None and not _same(before, kept.contents()):
            self.effects, self._kept = (self.effects or Effects()) | Effects(attributes=True), None
            return call()
        return result

    def _called(self, made: StructuralCopy | None, params: Params, inputs: Any) -> Any:
        if made is None:
            return self.model({**self.constants, **params}, inputs)
        made.put(params)
        args, kwargs = arguments(inputs)
        return made.model(*args, **kwargs)


def _has_state(function: Any) -> bool:
    """Whether it is more than the code of a function."""
    if isinstance(function, (types.BuiltinFunctionType, type(None))):
        return False
    return not isinstance(function, types.FunctionType) or bool(function.__closure__ or function.__defaults__)


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments of a model: a dict is keywords, a tuple or list is positional."""
    if isinstance(inputs, dict):
        return (), inputs
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    return (inputs,), {}


def _storage(tensor: Tensor) -> int:
    return int(storage_of(tensor)._cdata)


def _same(before: list[list[Any]], after: list[list[Any]]) -> bool:
    """Whether containers hold the very same things."""
    pairs = zip(before, after, strict=True)
    return all(len(one) == len(other) and all(map(_is_same, one, other)) for one, other in pairs)


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) is int and one == other)


class Reads(FunctionMode):
    """Refuses functions that use parameters from outside the copied modules."""

    def __init__(self, outside: Mapping[int, str], words: str) -> None:
        super().__init__()
        self.outside, self.words = outside, words

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in flatten_tree((args, kwargs)):
            if id(leaf) in self.outside:
                raise ValueError(self.words.format(self.outside[id(leaf)]))
        return func(*args, **(kwargs or {}))


_CASTS = {torch.ops.aten._to_copy.default: 0, torch.ops.aten.copy_.default: 1}
"""Kernels that may cast, and which argument they read."""


class _Writes(DispatchMode):
    """Records which of the `protected` storages functions write to, and redirects those writes to copies."""

    def __init__(self, protected: Collection[int]) -> None:
        super().__init__()
        self.protected = protected
        self.seen: set[int] = set()
        self.kinds: set[torch.dtype] = set()
        self.cast: set[torch.dtype] = set()
        self.reads = self.normalizes = self.unusual = False
        self._log_softmax: tuple[Tensor, int] | None = None

    def group_norms(self, given: Iterable[Tensor]) -> bool:
        """Whether group norms may read images that are not laid out as usual. Layouts that they do not read count too,
        also of given tensors: the size of a batch decides whether kernels pass them on."""
        return self.normalizes and (self.unusual or not all(map(is_usual, given)))

    def normalized(self, result: Any) -> bool:
        """Whether a result is what the last log_softmax gave, in another shape at most and not written since."""
        if self._log_softmax is None or not isinstance(result, Tensor):
            return False
        found, version = self._log_softmax
        same = _storage(result) == _storage(found) and result.numel() == found.numel()
        return same and found._version == version

    @property
    def coarsest(self) -> float:
        """The unit of the coarsest numbers, where they are in half precision, as under autocast, or were cast to fewer
        digits; else 0."""
        units = [float(torch.finfo(kind).eps) for kind in self.kinds if kind.is_floating_point]
        half = [unit for unit in units if unit > torch.finfo(torch.float32).eps]
        return max([*half, *(float(torch.finfo(kind).eps) for kind in self.cast)], default=0.0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            raise ValueError(
                f"model: it calls {func.__name__}, a higher-order operator of torch, whose steps cannot be followed; "
                "write it in plain operations, such as torch.where instead of torch.cond"
            )
        self.reads = self.reads or func.overloadpacket in READING
        if is_group_norm(func, args):
            self.normalizes, self.unusual = True, self.unusual or not is_usual(args[0])
        places = _written_arguments(func)
        if places:
            args = [self._instead(one) if i in places else one for i, one in enumerate(args)]
            kwargs = {key: self._instead(one) if key in places else one for key, one in kwargs.items()}
        found = func(*args, **kwargs)
        if isinstance(found, Tensor):
            self.kinds.add(found.dtype)
            self.unusual = self.unusual or (found.ndim > 3 and not found.is_contiguous())
            if func is torch.ops.aten._log_softmax.default:
                self._log_softmax = found, found._version
            source = args[_CASTS[func]] if func in _CASTS else found
            casts = found.is_floating_point() and source.is_floating_point()
            if casts and found.dtype.itemsize < source.dtype.itemsize:
                self.cast.add(found.dtype)
        return found

    def _instead(self, value: Any) -> Any:
        written = {_storage(leaf) for leaf in flatten_tree(value) if isinstance(leaf, Tensor)} & set(self.protected)
        if not written:
            return value
        self.seen |= written
        return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, value)


@cache
def _written_arguments(func: Any) -> frozenset[int | str]:
    """Places and names of the arguments that a function writes."""
    found: set[int | str] = set()
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found |= {i, argument.name}
    return frozenset(found)


def flatten_tree(value: Any) -> list[Any]:
    """What tuples, lists and dicts hold, however nested; anything else is itself.

    >>> flatten_tree(((1, [2, 3]), {"stride": (4, 5)}))
    [1, 2, 3, 4, 5]
    """
    if isinstance(value, dict):
        value = tuple(value.values())
    if not isinstance(value, (tuple, list)):
        return [value]
    found = []
    for one in value:
        if isinstance(one, (tuple, list, dict)):
            found += flatten_tree(one)
        else:
            found.append(one)
    return found
