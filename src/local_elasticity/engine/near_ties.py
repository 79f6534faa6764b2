"""Sources at which rounding decides a unit: a ReLU whose input is nearly 0, or nearly equal values in a pool.

The gradient of a source jumps there, so that its whole row is another one if the rounding of float32 takes the other
side. Predictions do not jump, so null steps do not show it. Inputs of such units are compared with those of float64. At
sources where some are nearer to the jump than they are rounded, so are gradients that are rounded in several ways.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from local_elasticity.engine.inputs import count, take
from local_elasticity.engine.job import Job
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.problem import BoundProblem, Inputs, leaves_of, sizes_of
from local_elasticity.engine.replica import Params
from local_elasticity.engine.rounding import LENGTH, Rounding, alternating_signs, run_rounded
from local_elasticity.shapes import Bool

MOST_UNITS = 2048
"""The most units in a layer of which a single one may matter to the gradient."""

EXPECTED_TIES = {"cpu": 1e-2, "cuda": 1e-1}
"""The expected number of near ties from which they are looked for: units times the rounding of their inputs. A GPU
waits for the kernels of that search."""

GRADIENT_ERROR = 2e-3
"""The share of its norm by which a gradient that rounding decides may be off."""


NEAR = 4
"""Units are near a tie up to this many times the rounding of their inputs, and gradients are rounded by as much."""

PATTERNS = 4
"""Ways in which gradients are rounded."""


def _between(x: Tensor, low: Any, high: Any) -> Tensor:
    ends = [(x - end).abs() for end in (low, high) if end is not None]
    return torch.minimum(*ends) if len(ends) == 2 else ends[0]


TIES: dict[str, Callable[..., Tensor]] = {
    **dict.fromkeys(("relu", "leaky_relu", "_prelu_kernel", "abs"), lambda x, *rest: x),
    **dict.fromkeys(("threshold", "clamp_min", "clamp_max", "maximum", "minimum"), lambda x, at, *rest: x - at),
    **dict.fromkeys(("hardswish", "hardsigmoid"), lambda x: _between(x, -3, 3)),
    "hardtanh": lambda x, low=-1, high=1: _between(x, low, high),
    "clamp": lambda x, low=None, high=None: _between(x, low, high),
}
"""Kernels whose derivative jumps, and how far an input is from it."""

POOLS = ("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d")
"""Kernels that take the largest of several values, and give its place too."""


def decided_by_rounding(job: Job) -> Bool[Tensor, " n"] | None:
    """Which sources have a gradient that rounding decides; None if that is unlikely, or cannot be compared."""
    bound, device = job.bound, job.bound.device
    fitting = job.memory // (4 * job.footprint.forward())
    if bound.dtype != torch.float32 or device.type not in EXPECTED_TIES or bound.replica.coarsest or fitting < 1:
        return None
    units = job.n * job.batch * _units(job)
    if units * torch.finfo(bound.dtype).eps * _offset(job.source_inputs) < EXPECTED_TIES[device.type]:
        return None
    try:
        with bound.problem.to(torch.float64).bound() as finer:
            higher = job.again(finer, torch.arange(job.n, device=device))
            decided = _near_ties(job, higher, fitting).view(job.n, job.batch).any(1)
            for row in torch.nonzero(decided).flatten().tolist():
                decided[row] = _gradient_error(job, higher, row) > GRADIENT_ERROR
    except Exception as error:  # a forward pass that was not made for float64, or a lack of memory
        if not may_be_passed_over(error):
            raise
        return None
    return decided


_known_units: ModelCache[int] = ModelCache()


def _units(job: Job) -> int:
    """Units of an example that decide, in layers where one may matter."""
    found = _known_units.get(job.bound, job.kind_of_targets)
    if found is None:
        found = sum(unit.count for unit in _read(job.bound, take(job.examples(slice(0, 1)), slice(0, 1)), 1))
        _known_units.put(job.bound, job.kind_of_targets, found)
    return found


def _offset(inputs: Inputs) -> float:
    """How many times as large inputs are as their spread: so many times as much rounding they bring."""
    leaves = [leaf for leaf in tree_leaves(inputs) if leaf.is_floating_point()]
    spread = math.hypot(*sizes_of([leaf - leaf.mean() for leaf in leaves]))
    return max(1.0, math.hypot(*sizes_of(leaves)) / spread) if spread > 0 else 1.0


def _near_ties(job: Job, higher: Job, at_once: int) -> Bool[Tensor, " b"]:
    """Which examples of the sources have a unit near a tie."""
    inputs, finely = job.examples(), higher.examples()
    near = []
    for start in range(0, count(inputs), at_once):
        some, b = slice(start, start + at_once), min(at_once, count(inputs) - start)
        found, exact = (_read(one.bound, take(of, some), b) for one, of in ((job, inputs), (higher, finely)))
        of_example = torch.zeros(b, dtype=torch.bool, device=job.bound.device)
        for one, finer in zip(found, exact, strict=True):
            ties = finer.ties(NEAR * (one.inputs - finer.inputs).square().mean().sqrt())
            of_example |= ties.flatten(1).any(1) if ties.shape[0] == b else ties.any()
        near.append(of_example)
    return torch.cat(near)


def _gradient_error(job: Job, higher: Job, row: int) -> float:
    """How far the gradient of a source is from that of float64, as a share of its norm, if it is rounded otherwise."""

    def gradient(of: Job) -> Params:
        return of.bound.step_gradient(leaves_of(of.bound.params), *of.source(row))[2]

    exact, device = gradient(higher), job.bound.device
    rounded = [Rounding(NEAR * alternating_signs(torch.ones(LENGTH, device=device), i)) for i in range(PATTERNS)]
    plainly = partial(gradient, job)
    found = [plainly(), *(run_rounded(one, plainly, plainly) for one in rounded)]
    size = math.hypot(*sizes_of(exact.values()))
    errors = [math.hypot(*sizes_of([one[name] - g for name, g in exact.items()])) for one in found]
    return max(errors) / size if size else 0.0


@dataclass(frozen=True)
class _Units:
    """What a kernel of `TIES` or `POOLS` read."""

    func: Any
    inputs: Tensor
    rest: tuple[Any, ...]
    count: int

    def ties(self, rounding: Tensor) -> Tensor:
        """Which of the units this much rounding may decide."""
        name = _name(self.func)
        if name in TIES:
            return TIES[name](self.inputs, *self.rest).abs() <= rounding
        x, (_, places) = self.inputs, self.func(self.inputs, *self.rest)
        rounding = rounding * (x != 0)  # a ReLU before gives exact zeros
        moves = (rounding * alternating_signs(x, i) for i in range(PATTERNS))
        return torch.stack([self.func(x + move, *self.rest)[1] != places for move in moves]).any(0)


def _read(bound: BoundProblem, inputs: Inputs, examples: int) -> list[_Units]:
    """The units of a forward pass, in layers where one may matter."""
    with torch.no_grad(), _Reader(examples) as seen:
        bound.outputs(bound.params, inputs)
    return seen.found


class _Reader(TorchDispatchMode):
    """Collects units."""

    supports_higher_order_operators = True

    def __init__(self, examples: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most, self.found = MOST_UNITS * examples, list[_Units]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _name(func) if isinstance(func, OpOverload) else ""
        if name not in TIES and name not in POOLS:
            return func(*args, **(kwargs or {}))
        read = args[0].clone()  # some kernels write there
        result = func(*args, **(kwargs or {}))
        units = result[0] if name in POOLS else result
        if read.is_floating_point() and units.numel() <= self.most:
            self.found.append(_Units(func, read, tuple(args[1:]), units.numel()))
        return result


def _name(kernel: Any) -> str:
    return str(kernel.overloadpacket.__name__).removesuffix("_")
