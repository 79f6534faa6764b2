"""The noise of a difference: how much of a change may be rounding alone.

A change computed as f(x; w⁺) − f(x; w) contains the rounding of two forward passes and of the weights. Both are
*measured*: every weight is moved up or down by one unit in the last place, and the change of predictions is recorded.

Each row has two more terms. One is the part of the step that was rounded away (`realized`). It is coherent, and can be
far larger than random rounding. The other is the rounding of the loss gradient, for several outputs, which changes the
direction of the step. It is large if that gradient is a small difference f − y of large numbers. If the gradient is a
product, only the rounding of the logits counts.

An engine that does not subtract has a few units of relative rounding, and the rounding of the drift by decay and
momentum, which is measured against float64. An optimizer whose code rounds weights to float32 also rounds its
displacements; the bound is taken from a few of its steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from local_elasticity.engine.inputs import spread
from local_elasticity.engine.job import Job, Runner
from local_elasticity.engine.loss import Kind, gradient_cancels
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.problem import BoundProblem, Inputs, Problem, leaves_of, sizes_of
from local_elasticity.engine.replica import Params
from local_elasticity.engine.rows import Rows
from local_elasticity.engine.update import FromOptimizer, Rule, Update, without_gradient
from local_elasticity.shapes import Bool, Float

RESOLVED = 1000.0
"""A source's own change is resolved where it exceeds its noise by this factor: ten standard deviations of rounding
are then one percent of it, and five, the most that is seen in practice, half a percent."""

NULL_SAMPLES = 32
"""The least number of examples times null steps from which the noise is estimated."""

DRIFT_TARGETS = 16
"""Targets at which the rounding of the drift, which all steps share, is measured."""

STEPS_LOOKED_AT = 4
"""Sources whose steps are used to bound the rounding of displacements, if an optimizer rounds."""

PATTERN = 65537
"""Length of the random pattern of null steps; prime, so that it is not aligned with rows or channels."""

ROUNDING = 8
"""Units of relative rounding in a change that was computed without subtracting."""


HUGE = 1e8
"""Outputs from here on without a gradient are those that a mask puts out of the loss, and are not rounded with it."""


@dataclass(frozen=True)
class Noise:
    """Predictions before the step, the standard deviation of rounding in a change of each, and whether the loss
    gradient is a difference of nearly equal numbers where a source is learned."""

    source_before: Float[Tensor, "n batch k"]
    source: Float[Tensor, "n batch k"]
    target: Float[Tensor, "m k"]
    gradient_cancels: bool
    computed_in: float = 0.0
    """The rounding unit of the coarsest precision inside the network, if coarser than that of the predictions."""
    drift: float = 0.0
    """The rounding of the drift, if changes are not differences of predictions."""
    step: float = 0.0
    """A bound of the rounding of a displacement, as a share of it."""

    @classmethod
    def measure(cls, job: Job, runner: Runner) -> Noise:
        """Null steps at the sources and targets of a job; none where the runner does not subtract."""
        at_once = max(1, job.memory // job.footprint.forward())
        target_before = runner.target_before
        target = _null_noise(job, job.target_inputs, target_before, at_once) if runner.subtracts else None
        if job.targets_are_sources:
            source_before, source = target_before, target
        else:
            inputs = tree_map(lambda leaf: leaf.flatten(0, 1), job.source_inputs)
            source_before = job.predict(job.bound.params, inputs, at_once)
            source = _null_noise(job, inputs, source_before, at_once) if runner.subtracts else None
        batches = (-1, job.batch, target_before.shape[1])
        return cls(
            source_before.reshape(batches),
            (torch.zeros_like(source_before) if source is None else source).reshape(batches),
            torch.zeros_like(target_before) if target is None else target,
            gradient_cancels(job.bound.problem.loss, job.source_labels),
            job.bound.replica.coarsest,
            0.0 if runner.subtracts else _drift_noise(job, runner),
            _step_rounding(job),
        )

    def again(self, rows: Tensor, dtype: torch.dtype, computed_in: float = 0.0) -> Noise:
        """The noise of some rows in another precision: rounding goes with the unit in the last place."""
        own = float(torch.finfo(self.target.dtype).eps)
        finer = max(torch.finfo(dtype).eps, computed_in) / max(own, self.computed_in)
        return Noise(
            self.source_before[rows].to(dtype),
            finer * self.source[rows].to(dtype),
            finer * self.target.to(dtype),
            self.gradient_cancels,
            computed_in,
            finer * self.drift,
            self.step,
        )

    def of_rows(self, rows: Rows) -> Float[Tensor, "c batch k"]:
        """The noise of the first c sources' own changes, with the terms of each row. It is at least the root of the
        smallest number, because norms square it."""
        change, gradient, realized = rows.source_change, rows.loss_gradient, rows.realized
        eps = torch.finfo(change.dtype).eps
        share = (realized - 1).abs() + ROUNDING * eps + self.step
        before = self.source_before[: len(change)].abs()
        largest = torch.where((gradient != 0) | (before < HUGE), before, 0).flatten(1).amax(1)
        if gradient[0].numel() > 1 and self.gradient_cancels:
            size = _size(gradient)
            share = share + eps * largest.clamp_min(1) / size.clamp_min(torch.finfo(size.dtype).tiny)
        elif gradient[0].numel() > 1:
            share = share + eps * largest
        typical = _size(change) / change[0].numel() ** 0.5
        of_row = (share * typical)[:, None, None]
        noise = torch.hypot(rows.subtracted[:, None, None] * self.source[: len(change)], of_row + self.drift)
        return noise.clamp_min(torch.finfo(change.dtype).tiny ** 0.5)


def resolved_rows(
    kind: Kind,
    source_before: Float[Tensor, "c batch k"],
    source_change: Float[Tensor, "c batch k"],
    source_noise: Float[Tensor, "c batch k"],
    target_before: Float[Tensor, "m k"],
    target_noise: Float[Tensor, "m k"],
) -> Bool[Tensor, " c"]:
    """Whether each source's own change stands clear of its noise and of every target's.

    Logits are looked at through the softmax as well, where KL ≈ ½ Σ p_i (d_i − p·d)²: a change that is clear as a
    vector may still be hidden there.
    """
    clear = _stands_clear(source_change, source_noise, target_noise)
    if kind == "logits":
        p = source_before.softmax(-1)
        seen = p.sqrt() * (source_change - (p * source_change).sum(-1, keepdim=True))
        clear &= _stands_clear(
            seen, _through_softmax(p, source_noise), _through_softmax(target_before.softmax(-1), target_noise)
        )
    return clear & (source_change != 0).flatten(1).any(1)


def _stands_clear(change: Tensor, noise: Tensor, target_noise: Tensor) -> Tensor:
    """With √k to spare, so that it holds in any norm of k outputs."""
    least = _size(noise).clamp_min(_size(target_noise).nan_to_num(0.0).max())
    return _size(change) >= RESOLVED * math.sqrt(noise.shape[-1]) * least


def _through_softmax(p: Tensor, noise: Tensor) -> Tensor:
    return (p * (1 - p)).sqrt() * noise


def _size(rows: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(rows.flatten(1), dim=1)
    return size


@dataclass(frozen=True)
class _Drift:
    """What an update does where there is no gradient."""

    update: Update
    plain = False

    @property
    def step_size(self) -> float:
        return self.update.step_size

    @property
    def vectorizes(self) -> bool:
        return self.update.vectorizes

    def rule(self, problem: Problem) -> Rule:
        return without_gradient(self.update.rule(problem))


def _drift_noise(job: Job, runner: Runner) -> float:
    """The rounding of the changes that decay and momentum make, which all sources share: its root mean square over a
    few targets, from float64. A network may undo such a move, as normalised features undo a decay; what is left of it
    then is rounding, which does not shrink with a source's gradient."""
    params = job.bound.params
    if job.plain or job.bound.dtype == torch.float64 or job.bound.device.type == "mps":
        return 0.0
    moved = job.rule(params, {name: torch.zeros_like(p) for name, p in params.items()})
    sizes = sizes_of(moved.values())
    if not 0 < max(sizes) < math.inf:
        return 0.0
    what = type(runner), *sizes, *job.bound.sizes, *sizes_of(tree_leaves(job.target_inputs))
    found = _drift_errors.get(job.bound, what)
    if found is None:
        found = _drift_error(job, runner)
        _drift_errors.put(job.bound, what, found)
    return found


_drift_errors: ModelCache[float] = ModelCache()
"""For the same weights, moves and targets, which norms tell."""


def _drift_error(job: Job, runner: Runner) -> float:
    update = _Drift(job.update)
    first, some = (spread(size, few, job.bound.device) for size, few in ((job.n, 1), (job.m, DRIFT_TARGETS)))
    try:
        found = type(runner)(job.few(job.bound, update, first, some)).rows(0, 1).target_change
        with job.bound.problem.to(torch.float64).bound() as bound:
            exact = type(runner)(job.few(bound, update, first, some)).rows(0, 1).target_change
    except Exception as error:  # whatever a forward pass raises that was not made for float64
        if not may_be_passed_over(error):
            raise
        return 0.0
    off = found - exact
    return float(off[off.isfinite()].square().mean().sqrt()) if bool(off.isfinite().any()) else 0.0


def _step_rounding(job: Job) -> float:
    """The largest share that rounding may be of ⟨g, Δ⟩ for a few sources, if it has the same sign everywhere."""
    unit = job.update.rounding(job.bound.problem) if isinstance(job.update, FromOptimizer) else 0.0
    if unit <= torch.finfo(torch.float64).eps:
        return 0.0
    params = job.bound.params
    shares = []
    for row in spread(job.n, STEPS_LOOKED_AT, job.bound.device).tolist():
        _, _, gradient = job.bound.step_gradient(leaves_of(params), *job.source(row), reached=True)
        moved = job.rule(params, gradient)
        rounded = sum(float((g * params[name]).abs().sum()) for name, g in gradient.items())
        whole = abs(sum(float((g * moved[name]).sum()) for name, g in gradient.items()))
        shares.append(unit / 2 * rounded / whole if whole else 0.0)
    return max(shares)


def _null_noise(job: Job, inputs: Inputs, before: Float[Tensor, "b k"], at_once: int) -> Float[Tensor, "b k"]:
    """Standard deviation of f(x; w′) − f(x; w) for weights w′ that differ from w by rounding only.

    Few null steps give a rough figure for a single example, so it is never taken to be below the root mean square
    over all of them. Predictions that are not finite are left out.
    """
    generator = torch.Generator(before.device).manual_seed(0)
    squares = torch.zeros_like(before)
    steps = -(-NULL_SAMPLES // len(before))
    finite = before.isfinite()
    largest = torch.where(finite, before, 0).abs().amax()
    scale = largest.clamp_min(torch.finfo(before.dtype).tiny) * torch.finfo(before.dtype).eps
    for _ in range(steps):
        moved = job.predict(_rounded_otherwise(job.bound, generator), inputs, at_once)
        squares += torch.where(finite, (moved - before) / scale, 0).square()
    own = (squares / steps).sqrt()
    typical = (squares.sum() / steps / finite.sum().clamp_min(1)).sqrt()
    return scale * own.clamp_min(typical)


def _rounded_otherwise(bound: BoundProblem, generator: torch.Generator) -> Params:
    """Every weight moved up, down or not at all by one rounding unit: the coarsest of the weights and of what is
    computed from them. Large weights repeat a long random pattern."""
    moved = {}
    floating = [p for p in (*bound.params.values(), *bound.constants.values()) if p.is_floating_point()]
    unit = max(*(torch.finfo(p.dtype).eps for p in floating), bound.replica.coarsest)
    for name, p in bound.params.items():
        length = max(1, min(PATTERN, p.numel()))
        pattern = torch.randint(-1, 2, (length,), generator=generator, device=p.device, dtype=p.dtype)
        units = pattern.repeat(-(-p.numel() // length))[: p.numel()].view(p.shape)
        moved[name] = p * (1 + unit * units)
    return moved
