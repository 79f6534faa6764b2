"""Digits that changes lose inside a network, though its predictions keep theirs.

Null steps show what rounding does to predictions. A change may come from another part of the network than most of a
prediction: f = 1000 z + head(norm(x)), where norm(x) has lost its digits. So the changes J(x′)g of a few pairs along
gradients g are compared with those in float64. This also shows what decisions by lost digits do, and operations that
null steps cannot see.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from local_elasticity.engine.derivatives import derivatives_along
from local_elasticity.engine.guard import interruption
from local_elasticity.engine.inputs import cast_floats, scattered, take
from local_elasticity.engine.job import Job
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.problem import Inputs, leaves_of, sizes_of

SOURCES, TARGETS = 3, 8
"""The sources and targets that are looked at."""

COPIES = 8
"""Copies of all activations that derivatives take in float64."""


def lost_in_changes(job: Job) -> float | None:
    """The largest error of J(x′)g among a few pairs, as a share of it or of the source's own, whichever is larger; None
    if it cannot be compared. It is found once for a model and data, and again where weights, inputs or their spread
    grow or shrink by about two."""
    bound = job.bound
    fitting = job.memory // (COPIES * job.footprint.activations) - SOURCES * job.batch
    if bound.dtype == torch.float64 or bound.device.type == "mps" or fitting < 1:
        return None
    data = (job.target_inputs,) if job.targets_are_sources else (job.target_inputs, job.source_inputs)
    sizes = bound.sizes, *map(_sizes, data), *map(_spreads, data)
    what = job.kind_of_targets, job.batch, *(_octave(math.hypot(*one)) for one in sizes)
    found = _found.get(bound, what)
    if found is None:
        found = (_compared(job, min(fitting, TARGETS)),)
        _found.put(bound, what, found)
    return found[0]


_found: ModelCache[tuple[float | None]] = ModelCache()


def _sizes(inputs: Inputs) -> list[float]:
    return sizes_of(tree_leaves(inputs))


def _spreads(inputs: Inputs) -> list[float]:
    """The norms of inputs about their mean."""
    leaves = [leaf for leaf in tree_leaves(inputs) if leaf.is_floating_point() and leaf.layout == torch.strided]
    return sizes_of([leaf - leaf.mean(0) for leaf in leaves])


def _octave(size: float) -> int | None:
    return round(math.log2(size)) if 0 < size < math.inf else None


def _compared(job: Job, targets: int) -> float | None:
    """For a few sources: themselves and some targets in a batch."""
    some = take(job.target_inputs, scattered(job.m, targets, job.bound.device))
    rows = scattered(job.n, SOURCES, job.bound.device).tolist()
    try:
        inputs = tree_map(lambda *parts: torch.cat(parts), *(job.source(row)[0] for row in rows), some)
        moves = [job.bound.step_gradient(leaves_of(job.bound.params), *job.source(row))[2] for row in rows]
        found = derivatives_along(job.bound, job.bound.params, moves, inputs, forward_first=True)
        with job.bound.problem.to(torch.float64).bound() as finer:
            finer.replica.effects = job.bound.replica.effects
            finely = cast_floats(inputs, torch.float64)
            exact = derivatives_along(
                finer, finer.params, cast_floats(moves, torch.float64), finely, forward_first=True
            )
    except Exception as error:  # targets of another shape, a forward pass not made for float64, a lack of memory
        if interruption(error):
            raise
        return None
    if found is None or exact is None:
        return None
    own = (slice(i * job.batch, (i + 1) * job.batch) for i in range(len(rows)))
    errors = [_error(a.double(), b, at) for a, b, at in zip(found, exact, own, strict=True)]
    return max((error for error in errors if error is not None), default=None)


def _error(found: Tensor, exact: Tensor, own: slice) -> float | None:
    """The largest error of an example, as a share of its change or of the source's, whichever is larger; None if the
    step moves nothing."""
    size = float(exact[own].norm())
    if not 0 < size < math.inf:
        return None
    off = (found - exact).norm(dim=1) / exact.norm(dim=1).clamp_min(size)
    return float(off[off.isfinite()].max()) if bool(off.isfinite().any()) else None
