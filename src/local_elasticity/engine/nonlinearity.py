"""How far a step is from its limit of small steps, from a few pairs; and the largest step that is still close to it.

For a source with displacement Δ the response is R = f(x′; w + Δ) − f(x′; w), and its limit J(x′)Δ. The nonlinearity is
the median over a few sources of ‖R − JΔ‖ / ‖JΔ‖, over a few targets. JΔ is a derivative along one direction, which two
backward passes give, or one pass in forward mode; where differences are propagated, those of a millionth of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from local_elasticity.engine.derivatives import derivative_along, derivatives_along, displacement_of
from local_elasticity.engine.inputs import spread, take
from local_elasticity.engine.job import Job, Sampled
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.noise import ROUNDING
from local_elasticity.engine.problem import BoundProblem, Inputs
from local_elasticity.engine.replica import Params
from local_elasticity.engine.response import sigmoid_change, softmax_change
from local_elasticity.engine.structured import limits_of
from local_elasticity.engine.supported import UnsupportedModelError
from local_elasticity.engine.tape import ReusedParameterError
from local_elasticity.engine.update import SGD, rule_of
from local_elasticity.warn import warn

if TYPE_CHECKING:
    from local_elasticity.engine.response import Response

SOURCES, TARGETS = 3, 4
"""The sources and targets that are sampled."""

LARGE = 0.1
"""Above this nonlinearity a warning is given."""

ALLOWED = 0.01
"""How far changes by the step that `SGD("auto")` takes are from their limits, at most."""

TRIED_SOURCES, MOST = 12, 0.9
"""Sources that it tries steps on, and the share of what they change that may not deviate by more."""

LARGEST, SMALLEST = 1.0, 1e-12
"""The range in which that step is searched."""

FINER = 8
"""Steps tried per factor of ten."""

HEARD = 0.05
"""Rows whose rounding exceeds this share of their change are left out."""


class LargeStepWarning(UserWarning):
    """A step is so large that predictions do not change in proportion to it."""


def in_words(nonlinearity: float) -> str | None:
    """The warning about a large step; None if the step is not large."""
    if not nonlinearity > LARGE:
        return None
    return (
        f"update: the step is so large that changes deviate by {nonlinearity:.0%} from those of small steps (the "
        'median of a few sources). For similarities in the limit of small steps pass update=le.SGD("auto") or '
        "approximate=True; to measure this very step, ignore le.LargeStepWarning"
    )


def warn_of_large_step(nonlinearity: float) -> None:
    """Warn if a result is far from the limit of small steps."""
    words = in_words(nonlinearity)
    if words:
        warn(words, LargeStepWarning)


def sampled(job: Job) -> Sampled:
    """The pairs that are looked at."""
    device = job.bound.device
    return Sampled(tuple(spread(job.n, SOURCES, device).tolist()), spread(job.m, TARGETS, device), {}, {})


def nonlinearity_of(job: Job, response: Response) -> float:
    """‖R − JΔ‖ / ‖JΔ‖ of the sampled pairs, the median over the sources whose change is clear of rounding; NaN where
    the network has no such derivative or no row is clear."""
    if not response.exact:
        return 0.0
    assert job.sampled is not None
    rows, columns = torch.tensor(job.sampled.sources, device=job.bound.device), job.sampled.targets
    changes = response.target_change[rows][:, columns]
    noise = response.noise_scale[rows, None, None] * response.target_noise[columns]
    told = are_clear(changes, noise)
    if not bool(told.any()):
        return math.nan
    rows, changes, noise = rows[told], changes[told], noise[told]
    reads = response.engine == "structured" and not job.removes_drift
    known = [job.sampled.limits.get(row) for row in rows.tolist()]
    limits = _by_differences(job, rows, columns, known) if reads else None
    limits = _by_derivatives(job, rows, columns) if limits is None else limits
    return math.nan if limits is None else float(median(deviations(changes, limits, noise).tolist()))


def are_clear(changes: Tensor, noise: Tensor) -> Tensor:
    """Which rows, [r, c, k], are clear of rounding."""
    sizes, heard = (_without_overflow(part).flatten(1).norm(dim=1) for part in (changes, noise))
    return sizes.isfinite() & (sizes > 0) & (heard < HEARD * sizes)


def deviations(changes: Tensor, limits: Tensor, noise: Tensor) -> Tensor:
    """‖R − JΔ‖ / ‖JΔ‖ of every row, [r], without what rounding adds to it."""
    changes, limits, noise = (_without_overflow(part) for part in (changes, limits.to(changes), noise))
    off = ((changes - limits).square() - noise.square()).flatten(1).sum(1).clamp_min(0).sqrt()
    return off / limits.flatten(1).norm(dim=1).clamp_min(torch.finfo(torch.float32).tiny)


def _without_overflow(part: Tensor) -> Tensor:
    """The same numbers with room for their squares, where the device has any."""
    return part if part.device.type == "mps" else part.double()


def _by_differences(job: Job, rows: Tensor, columns: Tensor, known: list[Tensor | None]) -> Tensor | None:
    """The limits of some pairs, [r, c, k], from differences, unless all of them are known; None for a network that
    these cannot read."""
    found_beside_rows = [one for one in known if one is not None]
    if len(found_beside_rows) == len(known):
        found = torch.stack(found_beside_rows)
    else:
        few = job.again(job.bound, rows)
        few = replace(few, target_inputs=take(few.target_inputs, columns))
        try:
            found = limits_of(few)
        except (UnsupportedModelError, ReusedParameterError):
            return None
    return found if bool(found.isfinite().all()) else None


def _by_derivatives(job: Job, rows: Tensor, columns: Tensor) -> Tensor | None:
    """The same by derivatives along the displacement of each source."""
    inputs = take(job.target_inputs, columns)
    if job.removes_drift:
        each = [derivative_along(job.bound, start, moved, inputs) for start, moved in _displacements(job, rows)]
        found = [one for one in each if one is not None]
        return torch.stack(found) if len(found) == len(each) else None
    return derivatives_along(job.bound, job.bound.params, [moved for _, moved in _displacements(job, rows)], inputs)


def _displacements(job: Job, rows: Tensor) -> list[tuple[Params, Params]]:
    """Where changes are counted from, and the displacements of some sources, those that an engine kept among them."""
    kept = {} if job.sampled is None or job.removes_drift else job.sampled.displacements
    return [(job.bound.params, kept[row]) if row in kept else displacement_of(job, row) for row in rows.tolist()]


def resolved_step(job: Job) -> SGD:
    """`SGD` with the largest step whose changes deviate by at most 1 % from their limits, to two digits; 1 if no step
    up to there deviates by more. Steps are tried in float64 where the network takes that."""
    assert isinstance(job.update, SGD)
    decay = job.update.weight_decay
    with job.bound.problem.to(torch.float64).bound() as bound:
        try:
            deviation = _deviations(job, bound, decay)
        except Exception as error:  # whatever a forward pass raises that was not made for float64
            if not may_be_passed_over(error):
                raise
            deviation = _deviations(job, job.bound, decay)
    return SGD(_largest(deviation), decay)


def _largest(deviation: Callable[[float], float]) -> float:
    """The largest step in the range whose deviation is allowed, to two digits: searched downwards by factors of ten,
    then in finer steps. A ValueError if there is none."""
    size = LARGEST
    if deviation(size) <= ALLOWED:
        return size
    while size > SMALLEST:
        size /= 10
        if deviation(size) <= ALLOWED:
            break
    else:
        raise ValueError(
            f'update: le.SGD("auto") finds no step from {SMALLEST:g} to {LARGEST:g} at which changes are within '
            f"{ALLOWED:.0%} of their limit, as where gradients are not derivatives (straight-through estimators, "
            "detach); pass a number"
        )
    low, high = 0, FINER
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if deviation(_rounded(size, middle)) <= ALLOWED else (low, middle)
    return _rounded(size, low)


def _rounded(size: float, part: int) -> float:
    return float(f"{size * 10 ** (part / FINER):.1e}")


def _deviations(job: Job, bound: BoundProblem, decay: float) -> Callable[[float], float]:
    """How far changes are from their limits, as a function of the step size: such that a share `MOST` of some sources
    deviates by less, at some targets and at the source itself, in outputs and in probabilities. Changes that rounding
    hides are left out: a source that is learned has next to no gradient."""
    rows = spread(job.n, TRIED_SOURCES, job.bound.device)
    unit = replace(job, update=SGD(1.0, decay))
    few = unit.again(bound, rows)
    few = replace(few, rule=rule_of(few.update, bound))
    targets = take(few.target_inputs, spread(job.m, TARGETS, bound.device))
    tried: list[tuple[Params, Inputs, Tensor, Tensor]] = []
    derived = False
    for row in range(few.n):
        start, moved = displacement_of(few, row)
        for inputs in (targets, few.source(row)[0]):
            limit = derivative_along(bound, start, moved, inputs)
            derived |= limit is not None
            if limit is not None:
                with torch.no_grad():
                    before = bound.predict(bound.params, inputs)
                tried += [(moved, inputs, before, limit)] if _is_heard(LARGEST * limit, before) else []

    def deviation(size: float) -> float:
        found = []
        for moved, inputs, before, limit in tried:
            if _is_heard(size * limit, before):
                after = {name: p + size * moved[name] if name in moved else p for name, p in bound.params.items()}
                with torch.no_grad():
                    change = bound.predict(after, inputs) - before
                found.append(_off(change, size * limit, before, job.kind))
        return float(np.quantile(found, MOST, method="higher")) if found else math.inf

    if not tried:
        missing = "gradient at the first sources" if derived else "derivative of the network along a step"
        raise ValueError(f'update: le.SGD("auto") finds no {missing} to choose a step by; pass a number')
    return deviation


def _is_heard(limit: Tensor, before: Tensor) -> bool:
    """Whether the rounding of predictions is smaller than the deviations that are allowed."""
    return ROUNDING * torch.finfo(before.dtype).eps * float(before.norm()) < ALLOWED * float(limit.norm())


def _off(change: Tensor, limit: Tensor, before: Tensor, kind: str) -> float:
    """The relative distance of a change of outputs from its limit, or that of the probabilities, if it is larger."""
    shares = [_relative(change, limit)]
    if kind == "logits":
        p = before.softmax(-1)
        moved = limit - limit.gather(-1, p.argmax(-1, keepdim=True))  # changes nothing, and keeps digits
        slope = p * (moved - (p * moved).sum(-1, keepdim=True))
        shares.append(_relative(softmax_change(before, change), slope))
    elif kind == "binary_logits":
        slope = before.sigmoid() * (-before).sigmoid() * limit
        shares.append(_relative(sigmoid_change(before, change), slope))
    return max(share if math.isfinite(share) else math.inf for share in shares)


def _relative(change: Tensor, limit: Tensor) -> float:
    size = float(limit.norm())
    return float((change - limit).norm()) / size if size > 0 else 0.0
