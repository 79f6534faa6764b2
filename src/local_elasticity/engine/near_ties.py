"""Examples at which rounding decides a unit: a ReLU whose input is nearly 0, or nearly equal values in a pool.

The gradient of a source jumps there, so that its whole row is another one if the rounding of float32 takes the other
side. Predictions do not jump, so null steps do not show it. A change at a target that was computed without subtracting
jumps as well. Inputs of such units are compared with those of float64. At sources where some are nearer to the jump
than they are rounded, so are gradients that are rounded in several ways.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from local_elasticity.engine.inputs import cast_floats, count, scattered, take
from local_elasticity.engine.job import Job
from local_elasticity.engine.jumps import Units, read_units
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.problem import BoundProblem, Inputs, leaves_of, sizes_of
from local_elasticity.engine.replica import Params
from local_elasticity.engine.rounding import LENGTH, Rounding, alternating_signs, run_rounded
from local_elasticity.shapes import Bool

MOST_UNITS = 2048
"""The most units in a layer of which a single one may matter to the gradient."""

LOOKED_AT = 8
"""Examples from which the number of near ties is estimated."""

EXPECTED_TIES = {"cpu": 1e-2, "cuda": 1e-1}
"""The expected number of near ties from which they are looked for. A GPU waits for the kernels of that search."""

GRADIENT_ERROR = 2e-3
"""The share of its norm by which a gradient that rounding decides may be off."""

NEAR = 4
"""Units are near a tie up to this many times the rounding of their inputs, and gradients are rounded by as much."""

NEAR_TARGETS = 100
"""At targets, up to this many times: a step may move a unit as far, and its change then lacks the rounding."""

SMALL_MOVES = NEAR_TARGETS / NEAR
"""How many times as many units count at targets as at sources."""

PATTERNS = 4
"""Ways in which gradients are rounded."""


def decided_by_rounding(job: Job) -> Bool[Tensor, " n"] | None:
    """Which sources have a gradient that rounding decides; None if that is unlikely, or cannot be compared."""
    if not _comparable(job) or _known_to_be_unlikely(job, job.examples(), "sources"):
        return None
    try:
        with job.bound.problem.to(torch.float64).bound() as finer:
            if not _are_likely(job, finer, job.examples(), "sources"):
                return None
            higher = job.again(finer, torch.arange(job.n, device=job.bound.device))
            decided = _near(job, finer, job.examples(), NEAR).view(job.n, job.batch).any(1)
            for row in torch.nonzero(decided).flatten().tolist():
                decided[row] = _is_decided(job, higher, row)
    except Exception as error:  # a forward pass that was not made for float64, or a lack of memory
        if not may_be_passed_over(error):
            raise
        return None
    return decided


def near_ties(job: Job) -> tuple[Bool[Tensor, " m"], Bool[Tensor, " n"]]:
    """The targets and the sources with a unit so near a tie that its rounding matters to a small change; none if that
    cannot be compared."""
    device = job.bound.device
    none = torch.zeros(job.m, dtype=torch.bool, device=device), torch.zeros(job.n, dtype=torch.bool, device=device)
    examples = {"targets": job.target_inputs} | ({} if job.targets_are_sources else {"sources": job.examples()})
    if not _comparable(job) or all(_known_to_be_unlikely(job, x, which, SMALL_MOVES) for which, x in examples.items()):
        return none
    try:
        with job.bound.problem.to(torch.float64).bound() as finer:
            finer.replica.effects = job.bound.replica.effects
            targets = _near_if_likely(job, finer, job.target_inputs, "targets")
            if job.targets_are_sources:
                return targets, targets
            return targets, _near_if_likely(job, finer, job.examples(), "sources").view(job.n, job.batch).any(1)
    except Exception as error:  # a forward pass that was not made for float64, or a lack of memory
        if not may_be_passed_over(error):
            raise
        return none


def _near_if_likely(job: Job, finer: BoundProblem, inputs: Inputs, which: str) -> Bool[Tensor, " b"]:
    """Which examples have a unit so near a tie that its rounding matters to a small change."""
    if _are_likely(job, finer, inputs, which, SMALL_MOVES):
        return _near(job, finer, inputs, NEAR_TARGETS)
    return torch.zeros(count(inputs), dtype=torch.bool, device=job.bound.device)


def _comparable(job: Job) -> bool:
    bound = job.bound
    known = bound.device.type in EXPECTED_TIES and not bound.replica.coarsest
    return bound.dtype == torch.float32 and known and _at_once(job) > 0


def _at_once(job: Job) -> int:
    """The examples that fit into memory with their units, in both precisions."""
    return job.memory // (4 * job.footprint.forward())


_known: ModelCache[float] = ModelCache()


def _are_likely(job: Job, finer: BoundProblem, inputs: Inputs, which: str, factor: float = 1.0) -> bool:
    """Whether so many near ties are expected that they are worth a search, if so many times as many count as are within
    their rounding. Their number at an example is estimated once for a model and data."""
    what = _which_examples(job, inputs, which)
    found = _known.get(job.bound, what)
    if found is None:
        some = take(inputs, scattered(count(inputs), LOOKED_AT, job.bound.device))
        found = _expected(*_both(job, finer, some)) / min(LOOKED_AT, count(inputs))
        _known.put(job.bound, what, found)
    return factor * count(inputs) * found >= EXPECTED_TIES[job.bound.device.type]


def _known_to_be_unlikely(job: Job, inputs: Inputs, which: str, factor: float = 1.0) -> bool:
    """Whether an earlier estimate says so, for which no weights in float64 are needed."""
    found = _known.get(job.bound, _which_examples(job, inputs, which))
    return found is not None and factor * count(inputs) * found < EXPECTED_TIES[job.bound.device.type]


def _which_examples(job: Job, inputs: Inputs, which: str) -> Any:
    return which, tuple(tuple(leaf.shape[1:]) for leaf in tree_leaves(inputs)), job.scales


def _expected(found: list[Units], exact: list[Units]) -> float:
    """How many units are as near to a tie as they are rounded, if they lie evenly within their spread."""
    pairs = [(finer.count, finer.rounding(one), finer.spread) for one, finer in zip(found, exact, strict=True)]
    return sum(units * min(1.0, rounding / spread) for units, rounding, spread in pairs if spread > 0)


def _both(job: Job, finer: BoundProblem, inputs: Inputs) -> tuple[list[Units], list[Units]]:
    """The units of some examples in the precision of the job, and in the finer one."""
    most = MOST_UNITS * count(inputs)
    return read_units(job.bound, inputs, most), read_units(finer, cast_floats(inputs, finer.dtype), most)


def _near(job: Job, finer: BoundProblem, inputs: Inputs, factor: float) -> Bool[Tensor, " b"]:
    """Which examples have a unit that is up to this many times as far from a tie as it is rounded."""
    alone = _both(job, finer, take(inputs, slice(0, 1)))[1]
    near = []
    for start in range(0, count(inputs), _at_once(job)):
        some = take(inputs, slice(start, start + _at_once(job)))
        b = count(some)
        of_example = torch.zeros(b, dtype=torch.bool, device=job.bound.device)
        for one, coarse, exact in zip(alone, *_both(job, finer, some), strict=True):
            axis = _axis_of_examples(one.units.shape, exact.units.shape, b)
            of_example |= _of_examples(exact.near(coarse, factor, axis), axis, b)
        near.append(of_example)
    return torch.cat(near)


def _axis_of_examples(alone: Sequence[int], together: Sequence[int], b: int) -> int | None:
    """The axis along which the units of b examples are b times as many as those of one alone; None if there is none."""
    if len(alone) != len(together):
        return None
    axes = [axis for axis, (one, all_) in enumerate(zip(alone, together, strict=True)) if one != all_]
    return axes[0] if len(axes) == 1 and together[axes[0]] == b * alone[axes[0]] else None


def _of_examples(ties: Bool[Tensor, "..."], axis: int | None, b: int) -> Bool[Tensor, " b"]:
    """Which of b examples have any of these ties. Where their axis is one of something else too, either may come first;
    where it is not known, all of them have."""
    if axis is None:
        return ties.any().expand(b)
    of_place = ties.movedim(axis, 0).reshape(ties.shape[axis], -1).any(1)
    return of_place.unflatten(0, (b, -1)).any(1) | of_place.unflatten(0, (-1, b)).any(0)


def _is_decided(job: Job, higher: Job, row: int) -> bool:
    """Whether the gradient of a source, as it is or rounded otherwise, differs from that of float64."""

    def gradient(of: Job) -> Params:
        return of.bound.step_gradient(leaves_of(of.bound.params), *of.source(row))[2]

    exact, device = cast_floats(gradient(higher), job.bound.dtype), job.bound.device
    plainly = partial(gradient, job)

    def differs(found: Params) -> bool:
        return math.hypot(*sizes_of([found[name] - g for name, g in exact.items()])) > most

    most = GRADIENT_ERROR * math.hypot(*sizes_of(exact.values()))
    rounded = (Rounding(NEAR * alternating_signs(torch.ones(LENGTH, device=device), i)) for i in range(PATTERNS))
    return differs(plainly()) or any(differs(run_rounded(one, plainly, plainly)) for one in rounded)
