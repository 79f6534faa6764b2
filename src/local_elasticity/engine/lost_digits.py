"""Digits that changes lose inside a network, though its predictions keep theirs.

Null steps show what rounding does to predictions. A change may come from another part of the network than most of a
prediction: f = 1000 z + head(norm(x)), where norm(x) has lost its digits. So the changes J(x′)g of a few pairs along
gradients g are compared with those in float64. This also shows what decisions by lost digits do, and operations that
null steps cannot see. So are the gradients themselves, which a norm may turn whose digits are lost backwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from local_elasticity.engine.derivatives import derivatives_along
from local_elasticity.engine.guard import interruption
from local_elasticity.engine.inputs import cast_floats, scattered, take
from local_elasticity.engine.job import Job
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.problem import leaves_of, sizes_of
from local_elasticity.engine.replica import Params

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
    what = job.kind_of_targets, job.batch, job.scales
    found = _found.get(bound, what)
    if found is None:
        found = (_compared(job, min(fitting, TARGETS)),)
        _found.put(bound, what, found)
    return found[0]


_found: ModelCache[tuple[float | None]] = ModelCache()


def _compared(job: Job, targets: int) -> float | None:
    """For a few sources: themselves and some targets in a batch."""
    some = take(job.target_inputs, scattered(job.m, targets, job.bound.device))
    rows = scattered(job.n, SOURCES).tolist()
    try:
        inputs = tree_map(lambda *parts: torch.cat(parts), *(job.source(row)[0] for row in rows), some)
        moves = _gradients(job, rows)
        found = derivatives_along(job.bound, job.bound.params, moves, inputs, forward_first=True)
        with job.bound.problem.to(torch.float64).bound() as finer:
            chosen = torch.tensor(rows, device=job.bound.device)
            higher = job.few(finer, job.update, chosen, chosen[:0])
            finely, moves_in_64 = cast_floats(inputs, torch.float64), cast_floats(moves, torch.float64)
            exact = derivatives_along(finer, finer.params, moves_in_64, finely, forward_first=True)
            turned = _typical_error(moves_in_64, _gradients(higher, range(len(rows))))
    except Exception as error:  # targets of another shape, a forward pass not made for float64, a lack of memory
        if interruption(error):
            raise
        return None
    if found is None or exact is None:
        return None
    own = (slice(i * job.batch, (i + 1) * job.batch) for i in range(len(rows)))
    errors = [_error(a.double(), b, at) for a, b, at in zip(found, exact, own, strict=True)]
    return max((error for error in (*errors, turned) if error is not None), default=None)


def _gradients(job: Job, rows: Iterable[int]) -> list[Params]:
    return [job.bound.step_gradient(leaves_of(job.bound.params), *job.source(row))[2] for row in rows]


def _typical_error(found: list[Params], exact: list[Params]) -> float | None:
    """The median error of a gradient, as a share of its norm: a unit that rounding decides turns a single one."""
    sizes = [math.hypot(*sizes_of(one.values())) for one in exact]
    off = [
        math.hypot(*sizes_of([one[name] - g for name, g in finer.items()]))
        for one, finer in zip(found, exact, strict=True)
    ]
    return median([error / size for error, size in zip(off, sizes, strict=True) if size > 0] or [0.0])


def _error(found: Tensor, exact: Tensor, own: slice) -> float | None:
    """The largest error of an example, as a share of its change or of the source's, whichever is larger; None if the
    step moves nothing."""
    size = float(exact[own].norm())
    if not 0 < size < math.inf:
        return None
    off = (found - exact).norm(dim=1) / exact.norm(dim=1).clamp_min(size)
    return float(off[off.isfinite()].max()) if bool(off.isfinite().any()) else None
