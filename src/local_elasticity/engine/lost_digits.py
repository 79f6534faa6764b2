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
from torch.utils._pytree import tree_leaves, tree_map

from local_elasticity.engine.derivatives import derivatives_along, displacement_of
from local_elasticity.engine.guard import interruption
from local_elasticity.engine.inputs import cast_floats, scattered, spread, take
from local_elasticity.engine.job import Job
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.problem import BoundProblem, Inputs, sizes_of

SOURCES, TARGETS = 3, 8
"""The targets that are looked at, for the first of so many sources whose step moves anything."""

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
    some = take(job.target_inputs, scattered(job.m, targets, job.bound.device))
    try:
        with job.bound.problem.to(torch.float64).bound() as finer:
            finer.replica.effects = job.bound.replica.effects
            found = (_at(job, finer, row, some) for row in spread(job.n, SOURCES, job.bound.device).tolist())
            return next((share for share in found if share is not None), 0.0)
    except Exception as error:  # whatever a forward pass raises that was not made for float64, or a lack of memory
        if interruption(error):
            raise
        return 0.0


def _at(job: Job, finer: BoundProblem, row: int, some: Inputs) -> float | None:
    """For one source, itself and some targets in a batch; None if its step moves nothing."""
    inputs = tree_map(lambda own, other: torch.cat([own, other]), job.source(row)[0], some)
    params, moved = displacement_of(job, row)
    found = derivatives_along(job.bound, params, [moved], inputs, forward_first=True)
    finely = [cast_floats(part, torch.float64) for part in (params, moved, inputs)]
    exact = derivatives_along(finer, finely[0], [finely[1]], finely[2], forward_first=True)
    return None if found is None or exact is None else _error(found[0].double(), exact[0], job.batch)


def _error(found: Tensor, exact: Tensor, batch: int) -> float | None:
    """The largest error of an example, as a share of its change or of the source's, whichever is larger."""
    own = float(exact[:batch].norm())
    if not 0 < own < math.inf:
        return None
    off = (found - exact).norm(dim=1) / exact.norm(dim=1).clamp_min(own)
    return float(off[off.isfinite()].max()) if bool(off.isfinite().any()) else None
