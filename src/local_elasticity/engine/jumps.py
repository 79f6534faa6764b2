"""Kernels whose derivative jumps, as that of a ReLU at 0 or of a maximum of equal values, and how far their inputs are
from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from local_elasticity.engine.guard import DispatchMode
from local_elasticity.engine.problem import BoundProblem, Inputs
from local_elasticity.engine.rounding import alternating_signs
from local_elasticity.shapes import Bool

PATTERNS = 4
"""Ways in which the values of a pool are moved, after one that lowers the largest and raises all others."""


def _at_zero(x: Tensor, *_: Any) -> Tensor:
    return x


def _at_other(x: Tensor, other: Any, *_: Any) -> Tensor:
    return x - other


def _between(x: Tensor, low: Any = None, high: Any = None, *_: Any) -> Tensor:
    ends = [(x - end).abs() for end in (low, high) if end is not None]
    return torch.minimum(*ends) if len(ends) == 2 else ends[0]


def _beyond(x: Tensor, ends: float = 0.5, *_: Any) -> Tensor:
    return x.abs() - ends


def _of_first(x: Tensor, count: int, dim: int, *, largest: bool = True) -> Tensor:
    """The gaps between the first values of the order along an axis, and the next one."""
    return x.topk(min(count + 1, x.shape[dim]), dim, largest).values.diff(dim=dim)


def _largest(x: Tensor, dim: Any = None, *_: Any, largest: bool = True) -> Tensor:
    """max, min, amax, amin; and the maximum of two tensors."""
    if isinstance(dim, Tensor):
        return x - dim
    dims = [dim] if isinstance(dim, int) else list(dim or range(x.ndim))
    last = x.movedim(dims, list(range(-len(dims), 0))).flatten(-len(dims))
    return _of_first(last, 1, -1, largest=largest)


def _smallest(x: Tensor, dim: Any = None, *_: Any) -> Tensor:
    return _largest(x, dim, largest=False)


def _apart_from_whole(x: Tensor, divisor: Any = 1, *_: Any) -> Tensor:
    return x / divisor - (x / divisor).round()


def _of_norm(x: Tensor, order: float = 2, dim: Any = None, *_: Any) -> Tensor:
    """Of a sum of magnitudes, or of the largest of them; any other norm jumps at 0 alone."""
    if order == 1:
        return x
    return _largest(x.abs(), dim) if order == torch.inf else torch.linalg.vector_norm(x, order, dim)


def _all_gaps(x: Tensor, dim: int = -1, *_: Any, **options: Any) -> Tensor:
    return x.sort(options.get("dim", dim)).values.diff(dim=options.get("dim", dim))


def _top(x: Tensor, k: int, dim: int = -1, largest: bool = True, *_: Any) -> Tensor:
    return _of_first(x, k, dim, largest=largest)


DISTANCES: dict[str, Callable[..., Tensor]] = {
    **dict.fromkeys(("relu", "leaky_relu", "_prelu_kernel", "abs", "sign", "elu", "rrelu_with_noise"), _at_zero),
    **dict.fromkeys(("sgn", "heaviside"), _at_zero),
    **dict.fromkeys(("threshold", "clamp_min", "clamp_max", "maximum", "minimum", "fmax", "fmin"), _at_other),
    **dict.fromkeys(("gt", "ge", "lt", "le"), _at_other),
    **dict.fromkeys(("hardswish", "hardsigmoid"), lambda x, *_: _between(x, -3, 3)),
    **dict.fromkeys(("softshrink", "hardshrink"), _beyond),
    **dict.fromkeys(("max", "amax", "argmax"), _largest),
    **dict.fromkeys(("min", "amin", "argmin"), _smallest),
    **dict.fromkeys(("floor", "trunc", "frac"), _apart_from_whole),
    **dict.fromkeys(("fmod", "remainder"), _apart_from_whole),
    "round": lambda x, *_: x - x.floor() - 0.5,
    "linalg_vector_norm": _of_norm,
    **dict.fromkeys(("sort", "cummax", "cummin"), _all_gaps),
    **dict.fromkeys(("median", "nanmedian"), lambda x, dim=-1, *_: _all_gaps(x, dim)),
    "kthvalue": lambda x, k, dim=-1, *_: _all_gaps(x, dim),
    "topk": _top,
    "hardtanh": lambda x, low=-1, high=1, *_: _between(x, low, high),
    "clamp": _between,
}
"""By the name of a kernel without its final underscore, how far its inputs are from the jump of its derivative."""

POOLS = ("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d")
"""Kernels that take the largest of several values, and give its place too."""


@dataclass(frozen=True)
class Units:
    """What a kernel of `DISTANCES` or `POOLS` read, and how many results it gave."""

    func: Any
    args: tuple[Any, ...]
    options: dict[str, Any]
    count: int

    @property
    def distances(self) -> Tensor:
        """How far units are from the jump; for a pool, its values."""
        name = _name(self.func)
        found: Tensor = self.args[0] if name in POOLS else DISTANCES[name](*self.args, **self.options)
        return found.double()

    @property
    def units(self) -> Tensor:
        """Something of the shape in which units are, as `near` gives it."""
        return self.func(*self.args)[0] if _name(self.func) in POOLS else self.distances

    def near(self, coarse: Units, factor: float, axis: int | None) -> Bool[Tensor, "..."]:
        """Which of these units, which were computed finely, are up to `factor` times as far from a jump as the coarse
        ones are rounded, with the examples along this axis."""
        rounding = factor * _typical((coarse.distances - self.distances).nan_to_num(0.0, 0.0, 0.0), axis)
        if _name(self.func) not in POOLS:
            exact = self.distances
            return (exact.abs() <= rounding) & ((exact != 0) | (coarse.distances != 0))
        x, rest = self.args[0], self.args[1:]
        moved = rounding * (x != 0)  # a ReLU before gives exact zeros
        places = self.func(x, *rest)[1]
        axes = 3 if "3d" in _name(self.func) else 2
        chosen = torch.zeros_like(x, dtype=torch.bool).flatten(-axes)
        chosen = chosen.scatter(-1, places.flatten(-axes), True).view_as(x)
        signs = (1 - 2.0 * chosen, *(alternating_signs(x, i) for i in range(PATTERNS)))
        return torch.stack([self.func(x + moved * sign, *rest)[1] != places for sign in signs]).any(0)

    def rounding(self, coarse: Units) -> float:
        """The root mean square by which the coarse units are rounded."""
        return _root_mean_square(coarse.distances - self.distances)

    @property
    def spread(self) -> float:
        """The standard deviation of the units."""
        distances = self.distances
        return _root_mean_square(distances - distances[distances.isfinite()].mean())


def _typical(errors: Tensor, axis: int | None) -> Tensor:
    """How large errors typically are in each place: as in the whole, or larger, as those of the same example and those
    of the same unit are. A few examples may have another scale than the others, and so may a few units."""
    squares = errors.square()
    whole = squares.mean()
    if axis is None or whole == 0:
        return whole.sqrt()
    others = [i for i in range(errors.ndim) if i != axis]
    of_example = squares.mean(others, keepdim=True) if others else squares
    of_unit = squares.mean(axis, keepdim=True)
    return (of_example.clamp_min(whole) * of_unit.clamp_min(whole) / whole).sqrt()


def read_units(bound: BoundProblem, inputs: Inputs, most: int) -> list[Units]:
    """The units of a forward pass, in layers of at most `most`."""
    with torch.no_grad(), _Reader(most) as seen:
        bound.outputs(bound.params, inputs)
    return seen.found


class _Reader(DispatchMode):
    """Collects units."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.found = most, list[Units]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _name(func) if isinstance(func, OpOverload) else ""
        if (name not in DISTANCES and name not in POOLS) or not _is_number(args[0]):
            return func(*args, **(kwargs or {}))
        read = tuple(one.clone() if isinstance(one, Tensor) else one for one in args)  # some kernels write there
        result = func(*args, **(kwargs or {}))
        units = result[0] if isinstance(result, (tuple, list)) else result
        if units.numel() <= self.most:
            self.found.append(Units(func, read, dict(kwargs or {}), units.numel()))
        return result


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.layout == torch.strided


def _root_mean_square(values: Tensor) -> float:
    known = values[values.isfinite()]
    return float(known.square().mean().sqrt()) if known.numel() else 0.0


def _name(kernel: Any) -> str:
    return str(kernel.overloadpacket.__name__).removesuffix("_")
