"""Differences: activations h of t targets together with how they differ after the step of each of c sources.

A network is run on `Difference` tensors with its own code. Each function that it calls has a rule that turns
differences of its inputs into differences of its outputs without ever subtracting two nearly equal numbers: a linear
layer gives W δ + ΔW (h + δ) + Δb, a ReLU max(δ + min(h, 0), −max(h, 0)), and so on. Nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from local_elasticity.engine.replica import flatten_tree
from local_elasticity.engine.steps import Steps
from local_elasticity.engine.supported import UnsupportedModelError

Pair = tuple[Tensor, Tensor | None]
"""h [t, …] and δ [c, t, …], None where nothing differs."""

RULES: dict[Any, Callable[..., Pair]] = {}
"""Function → rule(*args, **kwargs), for functions without parameters of their own."""

PARAMETRIC: dict[Any, Callable[..., Pair]] = {}
"""Function → rule(steps, *args, **kwargs), for those that weights go into."""

READ_BY_PYTHON = {
    *(getattr(Tensor, name) for name in ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__")),
    *(getattr(Tensor, name) for name in ("__complex__", "__array__", "equal", "allclose", "is_nonzero")),
    *(torch.equal, torch.allclose, torch.is_nonzero),
}
"""Functions that make Python numbers of values, which would be those before the step."""

LINEAR: set[Any] = set()
"""Functions that are linear in their inputs: they do to differences what they do to activations."""

JOINING: set[Any] = {torch.cat, torch.stack}
"""Linear functions that put tensors side by side: beside a difference, a constant is one that does not differ."""

IN_PLACE: dict[Any, Any] = {}
"""Function that writes into its first argument → the function that does not."""

OF_ANY_STRIDES: dict[Any, Any] = {Tensor.view: Tensor.reshape}
"""Function that wants its numbers in order in memory → the one that does not: rules may leave channels last."""

Written = TypeVar("Written", bound=Callable[..., Pair])


def rule(*functions: Any) -> Callable[[Written], Written]:
    """Register the rule of functions."""

    def register(written: Written) -> Written:
        RULES.update(dict.fromkeys(functions, written))
        return written

    return register


def parametric_rule(*functions: Any) -> Callable[[Written], Written]:
    """Register the rule of functions that weights go into."""

    def register(written: Written) -> Written:
        PARAMETRIC.update(dict.fromkeys(functions, written))
        return written

    return register


class Difference(Tensor):
    """h [t, …], with `.delta` δ [c, t, …] (None where nothing differs yet) and the `.steps` of the c sources."""

    delta: Tensor | None
    steps: Steps

    @staticmethod
    def of(base: Tensor, delta: Tensor | None, steps: Steps) -> Difference:
        made: Difference = base.as_subclass(Difference)
        made.delta, made.steps = delta, steps
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        written = args[0] if func in IN_PLACE or kwargs.pop("inplace", False) else None
        func = OF_ANY_STRIDES.get(func, IN_PLACE.get(func, func))
        result = _difference_of(func, args, kwargs)
        return result if written is None else _written_into(written, result)


def base_of(x: Any) -> Any:
    """h of a `Difference` as a plain tensor; anything else as it is."""
    return x.as_subclass(Tensor) if isinstance(x, Difference) else x


def delta_of(x: Any) -> Tensor | None:
    """δ of a `Difference`; None for a constant."""
    return x.delta if isinstance(x, Difference) else None


def _difference_of(func: Any, args: Any, kwargs: Any) -> Any:
    met = [leaf for leaf in flatten_tree((args, kwargs)) if isinstance(leaf, Difference)]
    steps = met[0].steps
    if func in JOINING:
        args, kwargs = tree_map(lambda leaf: _as_constant(leaf, steps), (args, kwargs))
    if func in PARAMETRIC:
        return Difference.of(*PARAMETRIC[func](steps, *args, **kwargs), steps)
    moves = any(leaf.delta is not None for leaf in met)
    if moves and func in RULES:
        return Difference.of(*RULES[func](*args, **kwargs), steps)
    if moves and func in READ_BY_PYTHON:
        raise UnsupportedModelError(f"{func.__name__} of a value that moves")
    base = func(*tree_map(base_of, args), **tree_map(base_of, kwargs))
    if not any(isinstance(leaf, Tensor) for leaf in flatten_tree(base)):
        return base
    if not moves:
        return tree_map(lambda leaf: Difference.of(leaf, None, steps), base)
    if func not in LINEAR:
        raise UnsupportedModelError(getattr(func, "__name__", str(func)))
    delta = applied_to_deltas(func, args, kwargs)
    if isinstance(base, Tensor):
        return Difference.of(base, delta, steps)
    return type(base)(Difference.of(b, d, steps) for b, d in zip(base, delta, strict=True))


def _as_constant(leaf: Any, steps: Steps) -> Any:
    plain = isinstance(leaf, Tensor) and not isinstance(leaf, Difference)
    return Difference.of(leaf, None, steps) if plain else leaf


def applied_to_deltas(func: Any, args: Any, kwargs: Any) -> Any:
    """A linear function of the differences, for every source."""
    found = [leaf for leaf in flatten_tree((args, kwargs)) if isinstance(leaf, Difference)]
    c = next(len(leaf.delta) for leaf in found if leaf.delta is not None)

    def of_one(*deltas: Tensor) -> Any:
        left = iter(deltas)
        one, named = tree_map(lambda leaf: next(left) if isinstance(leaf, Difference) else leaf, (args, kwargs))
        return func(*one, **named)

    def known(leaf: Difference) -> Tensor:
        return leaf.delta if leaf.delta is not None else torch.zeros_like(base_of(leaf)).expand(c, *leaf.shape)

    return torch.vmap(of_one)(*[known(leaf) for leaf in found])


def _written_into(x: Difference, result: Difference) -> Difference:
    """What an in-place function leaves: every name for `x` sees the new values."""
    base_of(x).copy_(base_of(result))
    x.delta = result.delta
    return x
