"""Digits that changes lose inside a network, though its predictions keep theirs.

Null steps show what rounding does to predictions. A change may come from another part of the network than most of a
prediction: f = 1000 z + head(norm(x)), where norm(x) has lost its digits. So the changes of a few pairs in the limit of
small steps, J(x′)Δ, are compared with those in float64, for the same displacements Δ. This also shows what decisions by
lost digits do, and operations that null steps cannot see.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from local_elasticity.engine.derivatives import derivative_along, displacement_of
from local_elasticity.engine.inputs import cast_floats, scattered, spread, take
from local_elasticity.engine.job import Job
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.problem import BoundProblem, Inputs, sizes_of
from local_elasticity.engine.replica import Params

SOURCES, TARGETS = 2, 8
"""The sources and targets that are looked at."""

COPIES = 8
"""Copies of all activations that derivatives take in float64."""


def lost_in_changes(job: Job) -> float:
    """The largest error of J(x′)Δ among a few pairs, as a share of it or of the source's own, whichever is larger; 0 if
    it cannot be compared. It is found once for a model and data, and again where weights or inputs grow or shrink by
    about two."""
    bound = job.bound
    fitting = job.memory // (COPIES * job.footprint.activations)
    if bound.dtype == torch.float64 or bound.device.type == "mps" or job.removes_drift or not fitting:
        return 0.0
    sizes = bound.sizes, sizes_of(tree_leaves(job.target_inputs)), sizes_of(tree_leaves(job.source_inputs))
    what = job.kind_of_targets, job.batch, type(job.update), *(_octave(math.hypot(*one)) for one in sizes)
    found = _found.get(bound, what)
    if found is None:
        found = _compared(job, min(fitting, TARGETS))
        _found.put(bound, what, found)
    return found


_found: ModelCache[float] = ModelCache()


def _octave(size: float) -> int | None:
    return round(math.log2(size)) if 0 < size < math.inf else None


def _compared(job: Job, targets: int) -> float:
    inputs = take(job.target_inputs, scattered(job.m, targets, job.bound.device))
    errors = [0.0]
    try:
        with job.bound.problem.to(torch.float64).bound() as finer:
            finer.replica.effects = job.bound.replica.effects
            for row in spread(job.n, SOURCES, job.bound.device).tolist():
                params, moved = displacement_of(job, row)
                own = _changes(job.bound, finer, params, moved, job.source(row)[0])
                others = _changes(job.bound, finer, params, moved, inputs)
                if own is None or others is None:
                    return 0.0
                errors.append(_error(own, others))
    except Exception as error:  # whatever a forward pass raises that was not made for float64
        if not may_be_passed_over(error):
            raise
        return 0.0
    return max(errors)


def _changes(
    bound: BoundProblem, finer: BoundProblem, params: Params, moved: Params, inputs: Inputs
) -> tuple[Tensor, Tensor] | None:
    """J(x′)Δ in the precision of the network and in float64; None if it has no such derivative."""
    found = derivative_along(bound, params, moved, inputs)
    exact = derivative_along(
        finer, cast_floats(params, torch.float64), cast_floats(moved, torch.float64), cast_floats(inputs, torch.float64)
    )
    return None if found is None or exact is None else (found.double(), exact)


def _error(own: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]) -> float:
    size = float(own[1].norm())
    if not 0 < size < math.inf:
        return 0.0
    off = (others[0] - others[1]).norm(dim=1) / others[1].norm(dim=1).clamp_min(size)
    worst = torch.cat([off, ((own[0] - own[1]).norm() / size).view(1)])
    return float(worst[worst.isfinite()].max()) if bool(worst.isfinite().any()) else 0.0
