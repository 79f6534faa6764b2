"""Differences: activations h of t targets together with how they differ after the step of each of c sources.

A network is run on `Difference` tensors, its parameters included, with its own code. Each function that it calls has a
rule that turns differences of its inputs into differences of its outputs without ever subtracting two nearly equal
numbers: a linear layer gives W δ + ΔW (h + δ) + Δb, a ReLU max(δ + min(h, 0), −max(h, 0)), and so on. Nothing is
approximated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from local_elasticity.engine.changes import WeightChange
from local_elasticity.engine.composites import inside
from local_elasticity.engine.guard import WITHOUT_EFFECT, FunctionMode
from local_elasticity.engine.replica import flatten_tree
from local_elasticity.engine.supported import UnsupportedModelError

Pair = tuple[Tensor, Tensor | None]
"""h [t, …] and δ [c, t, …], None if nothing differs."""

RULES: dict[Any, Callable[..., Any]] = {}
"""Function → rule(*args, **kwargs), which returns a pair, or a `Difference` that it made of others."""

LINEAR: dict[Any, Callable[..., Any] | None] = {}
"""Functions that are linear in their first argument, the only one that may differ: they do to differences what they do
to activations. The value does it to [c, …]; where it is None, the function is vectorised."""

READ_BY_PYTHON = {
    *(getattr(Tensor, name) for name in ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__")),
    *(getattr(Tensor, name) for name in ("__complex__", "__array__", "equal", "allclose", "is_nonzero")),
    *(torch.equal, torch.allclose, torch.is_nonzero),
}
"""Functions that make Python numbers of values, which would be those before the step."""

LIKE: set[Any] = {
    *(torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like, torch.rand_like, torch.randn_like),
    *(getattr(Tensor, name) for name in ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor")),
}
"""Functions that look at the shape of a tensor alone."""

AS_ANOTHER: set[Any] = {Tensor.expand_as, Tensor.reshape_as, Tensor.to, Tensor.type_as}
"""Functions that look at the shape, type or device of later arguments alone."""

MADE = {torch.zeros, torch.ones, torch.empty, torch.full}
"""Functions that make tensors of a shape."""

IN_PLACE: dict[Any, Any] = {}
"""Function that writes into its first argument → the function that does not."""

READ_AS: dict[Any, Any] = {
    Tensor.view: Tensor.reshape,
    Tensor.view_as: Tensor.reshape_as,
    Tensor.data.__get__: Tensor.detach,  # type: ignore[attr-defined]
}
"""Function → the one that gives the same. Those on the left need contiguous memory, which rules do not keep, or hide
that values are written."""

_MOVED = "local_elasticity_moved"
"""An attribute of memory that what differs was written into."""

Written = TypeVar("Written", bound=Callable[..., Any])


Kernel = Callable[..., Tensor]
"""Computes a difference, adds `plus` to it, and takes it through a ReLU of the values `relu_of`."""


@dataclass(frozen=True)
class Pending:
    """A difference that is not computed yet, so that one kernel can add another to it and take the ReLU of the sum."""

    kernel: Kernel
    reads: Tensor
    """Values that the kernel will read; they must not be written before that."""
    seen: int
    plus: Tensor | None = None

    @classmethod
    def of(cls, kernel: Kernel, reads: Tensor) -> Pending:
        return cls(kernel, reads, _times_written(reads))

    def adding(self, other: Tensor) -> Pending:
        """The sum with another difference."""
        return replace(self, plus=other if self.plus is None else self.plus + other)

    def computed(self, relu_of: Tensor | None = None) -> Tensor:
        """The difference, or the one that a ReLU makes of it."""
        if _times_written(self.reads) != self.seen:
            raise UnsupportedModelError(Difference._hidden)
        return self.kernel(plus=self.plus, relu_of=relu_of)


def rule(*functions: Any) -> Callable[[Written], Written]:
    """Teach `Structured` functions of torch, or operators of your own: how they pass differences on.

    The decorated function gets the arguments of the call. Those that differ are tensors with a `.base`, the values h
    before the step, and a `.delta`, how they differ after the step of each source, one axis more in front, or None. It
    returns f(h) and f(h + δ) − f(h), the latter in a form that does not subtract nearly equal numbers. A few pairs of
    every model are compared with the loop before the rule is trusted.

    Args:
        functions: those that the rule is for, such as `torch.atan` and `torch.Tensor.atan`.

    Returns:
        A decorator that leaves the function as it is.

    >>> import local_elasticity as le
    >>> @le.rule(torch.atan, torch.Tensor.atan)
    ... def atan(x):
    ...     h, d = x.base, x.delta
    ...     return torch.atan(h), torch.atan2(d, 1 + h * (h + d))
    >>> class Bounded(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.atan(x)
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), Bounded(), torch.nn.Linear(3, 3), Bounded())
    >>> sources = torch.randn(4, 2), torch.arange(4) % 3
    >>> le.respond(net, sources, loss="cross_entropy", engine="structured").engine
    'structured'
    """

    def register(written: Written) -> Written:
        RULES.update(dict.fromkeys(functions, written))
        return written

    return register


class Difference(Tensor):
    """h [t, …], with `.delta` δ [c, t, …], None if nothing differs. A weight has no axis t, and its `change` may be
    made of vectors that are multiplied out only where a function asks for all of it."""

    _delta: Tensor | None
    change: WeightChange | None
    pending: Pending | None
    _seen: int
    """The version counter of its values when the difference was computed."""
    _hidden = "a value that was written into by another name"
    """The error message if its values are requested but unknown."""

    @staticmethod
    def of(
        base: Tensor, delta: Tensor | None, change: WeightChange | None = None, pending: Pending | None = None
    ) -> Difference:
        made: Difference = base.as_subclass(Difference)
        made.set_difference(delta, change, pending)
        return made

    def set_difference(
        self, delta: Tensor | None, change: WeightChange | None = None, pending: Pending | None = None
    ) -> None:
        """The difference of its values as they are now."""
        self._delta, self.change, self.pending = delta, change, pending
        self._seen = _times_written(self.as_subclass(Tensor))

    @staticmethod
    def unknown(base: Tensor, what: str) -> Difference:
        """A value whose difference is not tracked; using it raises an error."""
        made = Difference.of(base, None)
        made._seen, made._hidden = -1, what
        return made

    @property
    def base(self) -> Tensor:
        """h as a plain tensor; an error where it was written into by another name, so that its δ is not known. A
        constant stays one as long as nothing that differs is written into its memory."""
        base = self.as_subclass(Tensor)
        if _times_written(base) != self._seen:
            if self._seen < 0 or self.moves or hasattr(base.untyped_storage(), _MOVED):
                raise UnsupportedModelError(self._hidden)
            was_written(self)
        return base

    @property
    def delta(self) -> Tensor | None:
        """δ, multiplied out where it is made of vectors."""
        if self._delta is None and self.pending is not None:
            self._delta, self.pending = self.pending.computed(), None
        if self._delta is None and self.change is not None:
            self._delta = self.change.dense(base_of(self))
        return self._delta

    @property
    def moves(self) -> bool:
        return self._delta is not None or self.change is not None or self.pending is not None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in WITHOUT_EFFECT and isinstance(args[0], Difference):
            return args[0]
        in_place = func in IN_PLACE or kwargs.pop("inplace", False)
        written = args[0] if in_place else None
        func = READ_AS.get(func, IN_PLACE.get(func, func))
        result = _difference_of(func, args, kwargs)
        return result if written is None else _written_into(written, result)


class Writable(FunctionMode):
    """Tensors that a forward pass makes are differences, so that what differs can be written into them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        made = type(found) is Tensor and (func in MADE or func in LIKE) and found.is_floating_point()
        return Difference.of(found, None) if made else found


def read_in_one(model: nn.Module) -> None:
    """Have modules of a copy that write out a function which torch has as one read as that one. Values without a
    difference go through their own code."""
    written_out = getattr(sys.modules.get("transformers.activations"), "NewGELUActivation", None)
    if written_out is None:
        return
    for module in model.modules():
        if isinstance(module, written_out):
            module.forward = partial(_gelu_tanh, module.forward)


def _gelu_tanh(written_out: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh") if isinstance(x, Difference) else written_out(x)


def name_of(func: Any) -> str:
    """The name of a function; of a property that is read or written, that of the property.

    >>> import torch
    >>> name_of(torch.sort), name_of(torch.Tensor.mH.__get__), name_of(torch.Tensor.data.__set__)
    ('sort', 'Tensor.mH', 'Tensor.data =')
    """
    name, owner = str(getattr(func, "__name__", func)), getattr(func, "__self__", None)
    if name not in ("__get__", "__set__"):
        return name
    of = getattr(getattr(owner, "fget", None), "__name__", None) or getattr(owner, "__name__", str(owner))
    return f"Tensor.{of}" + (" =" if name == "__set__" else "")


def base_of(x: Any) -> Any:
    """h of a `Difference` as a plain tensor; anything else as it is."""
    return x.base if isinstance(x, Difference) else x


def was_written(x: Difference) -> None:
    """The difference of x is that of its numbers as they are now."""
    x._seen = _times_written(x.as_subclass(Tensor))


def _times_written(base: Tensor) -> int:
    return 0 if base.is_inference() else base._version


def delta_of(x: Any) -> Tensor | None:
    """δ of a `Difference`; None for a constant."""
    return x.delta if isinstance(x, Difference) else None


def pending_of(x: Any) -> Pending | None:
    """δ of a `Difference` where it is not computed yet."""
    return x.pending if isinstance(x, Difference) else None


def change_of(x: Any) -> WeightChange | None:
    """The vectors that the change of a weight is made of, where it has not been multiplied out."""
    return x.change if isinstance(x, Difference) and x._delta is None else None


def _difference_of(func: Any, args: Any, kwargs: Any) -> Any:
    moving = [leaf for leaf in _values_read(func, args, kwargs) if isinstance(leaf, Difference) and leaf.moves]
    if moving:
        if func in RULES:
            found = RULES[func](*args, **kwargs)
            return _checked(func, *found) if isinstance(found, tuple) and _is_pair(found) else found
        if func in LINEAR:
            return _linear(func, args, kwargs, moving)
        body = inside(func)
        if body is not None:
            return body(*args, **kwargs)
        if func in READ_BY_PYTHON or getattr(func, "__name__", "") == "__set__":
            raise UnsupportedModelError(f"{name_of(func)} of a value that moves")
    base = func(*tree_map(base_of, args), **tree_map(base_of, kwargs))
    if args and isinstance(args[0], Difference) and not moving and func not in LIKE:
        was_written(args[0])
    if not any(isinstance(leaf, Tensor) for leaf in flatten_tree(base)):
        return base
    if moving:
        raise UnsupportedModelError(name_of(func))
    return tree_map(lambda leaf: Difference.of(leaf, None) if isinstance(leaf, Tensor) else leaf, base)


def _values_read(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments whose values a function looks at."""
    if func in AS_ANOTHER:
        return list(args[:1])
    return flatten_tree((args[1:], kwargs) if func in LIKE else (args, kwargs))


def _is_pair(found: tuple[Any, ...]) -> bool:
    return len(found) == 2 and not isinstance(found[0], Difference)


def _checked(func: Any, base: Tensor, delta: Tensor | None) -> Difference:
    """The result of a function; an UnsupportedModelError where it rounds what moves to whole numbers."""
    if delta is not None and not (base.is_floating_point() or base.is_complex()):
        raise UnsupportedModelError(f"{name_of(func)} as {base.dtype}".replace("torch.", ""))
    return Difference.of(base, delta)


def _linear(func: Any, args: Any, kwargs: Any, moving: list[Difference]) -> Any:
    """What a linear function makes of its first argument and of the difference of that, for every source."""
    if not args or any(leaf is not args[0] for leaf in moving):
        raise UnsupportedModelError(f"{name_of(func)} where another than the first argument moves")
    (h, *rest), named = tree_map(base_of, args), tree_map(base_of, kwargs)
    base, delta, direct = func(h, *rest, **named), args[0].delta, LINEAR[func]
    if direct is not None:
        moved = direct(delta, *rest, **named)
    else:
        moved = torch.vmap(lambda one: func(one, *rest, **named))(delta)
    if isinstance(base, Tensor):
        return _checked(func, base, moved)
    return type(base)(_checked(func, b, d) for b, d in zip(base, moved, strict=True))


def vectorized_over_sources(func: Any, args: Any, kwargs: Any) -> Any:
    """A function that is linear in all of its tensors of numbers together, applied to every source's differences; to
    zeros where there are none. Tensors of whole numbers and truths are places."""
    tensors = [leaf for leaf in flatten_tree((args, kwargs)) if isinstance(leaf, Tensor)]
    found = [leaf for leaf in tensors if leaf.is_floating_point() or leaf.is_complex()]
    c = next(len(d) for d in map(delta_of, found) if d is not None)
    places = {id(leaf): i for i, leaf in enumerate(found)}

    def of_one(*deltas: Tensor) -> Any:
        one, named = tree_map(
            lambda leaf: deltas[places[id(leaf)]] if id(leaf) in places else base_of(leaf), (args, kwargs)
        )
        return func(*one, **named)

    def known(leaf: Tensor) -> Tensor:
        delta = delta_of(leaf)
        return delta if delta is not None else torch.zeros_like(base_of(leaf)).expand(c, *leaf.shape)

    return torch.vmap(of_one)(*[known(leaf) for leaf in found])


def _written_into(x: Any, result: Any) -> Any:
    """What an in-place function leaves: every name for `x` sees the new values."""
    pending = pending_of(result)
    delta = delta_of(result) if pending is None else None
    if not isinstance(x, Difference):
        if pending is not None or delta is not None:
            raise UnsupportedModelError("a value that moves, written into a tensor that does not")
        return x.copy_(base_of(result))
    write(x, lambda base: base.copy_(base_of(result)), delta, pending)
    return x


def write(x: Difference, change: Callable[[Tensor], Any], delta: Tensor | None, pending: Pending | None = None) -> None:
    """Change the values of x and set their difference."""
    base = x.base
    change(base)
    x.set_difference(delta, pending=pending)
    if x.moves:
        setattr(base.untyped_storage(), _MOVED, True)


def aligned(delta: Tensor, ndim: int) -> Tensor:
    """δ [c, …] with the axes of a result with `ndim` axes; missing ones are inserted after c.

    >>> import torch
    >>> aligned(torch.ones(5, 3), 3).shape
    torch.Size([5, 1, 1, 3])
    """
    missing = ndim - (delta.ndim - 1)
    return delta.reshape(len(delta), *[1] * missing, *delta.shape[1:]) if missing > 0 else delta


def added(delta: Tensor | None, moved: Tensor | None, base: Tensor, *, channels: bool = False) -> Tensor | None:
    """δ and the change of a bias, which has an entry for each of the last places, or for each channel."""
    if moved is None:
        return delta
    of_channels = (len(moved), 1, -1, *[1] * (base.ndim - 2))
    moved = moved.view(of_channels) if channels else aligned(moved, base.ndim)
    return moved.expand(len(moved), *base.shape) if delta is None else delta + moved
