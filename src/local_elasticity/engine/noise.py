"""The noise of a difference: how much of a change may be rounding alone.

A change computed as f(x; w⁺) − f(x; w) contains the rounding of two forward passes and of the weights. Both are
*measured* by null steps (`null_steps.py`).

Each row has two more terms. One is the part of the step that was rounded away (`realized`). It is coherent, and can be
far larger than random rounding. The other is the rounding of the loss gradient, for several outputs, which changes the
direction of the step. It is large if that gradient is a small difference f − y of large numbers. If the gradient is a
product, only the rounding of the logits counts. For a loss of the user's it is measured (`turned_by_rounding`).

An engine that does not subtract has a few units of relative rounding; more where activations have lost digits, which
null steps show; and the rounding of the drift by decay and momentum, which is measured against float64. An optimizer
that steps on a copy of the weights also rounds its displacements; by how much is taken from a few of its steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from local_elasticity.engine.inputs import spread
from local_elasticity.engine.job import Job, Runner
from local_elasticity.engine.loss import Kind, gradient_cancels
from local_elasticity.engine.lost_digits import lost_in_changes
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.moved_outputs import takes_probabilities_only
from local_elasticity.engine.near_ties import decided_by_rounding
from local_elasticity.engine.null_steps import WELL_CONDITIONED, OutputRounding, null_noise, rounding_at_few
from local_elasticity.engine.problem import Problem, leaves_of, sizes_of
from local_elasticity.engine.rounding import Rounding, alternating_signs, run_rounded
from local_elasticity.engine.rows import Rows
from local_elasticity.engine.update import FromOptimizer, Rule, Update, without_gradient
from local_elasticity.shapes import Bool, Float

RESOLVED = 1000.0
"""A source's own change is resolved where it exceeds its noise by this factor: ten standard deviations of rounding
are then one percent of it, and five, the most that is seen in practice, half a percent."""

FEW_OUTPUTS = 10
"""Outputs up to which the 2-norm of a change must exceed its noise by the root of their number as well."""

DRIFT_TARGETS = 16
"""Targets at which the rounding of the drift, which all steps share, is measured."""

STEPS_LOOKED_AT = 4
"""Sources whose steps are used to bound the rounding of displacements, if an optimizer steps on a copy."""

SMALL_STEPS = 1e-9
"""Learning rates up to which the rounding of weights in float64 may matter to their displacements."""

CERTAIN = 5e-3
"""A share of predictions that rounding moves above which changes count as wrong by it, though a few were not."""

ROUNDING = 8
"""Units of relative rounding in a change that was computed without subtracting."""


LOGIT_ROUNDING = 1e-3
"""The rounding of logits, and so of probabilities, that is accepted; and that of 1 − f, where f is a probability."""

HUGE = 1e8
"""Outputs from here on without a gradient are those that a mask puts out of the loss, and are not rounded with it."""

PATTERNS = 2
"""Patterns of signs by which outputs are moved to see what their rounding does to a loss gradient."""

UNITS = 16
"""Units in the last place by which they are moved; what one of them does would itself be rounded to one or to none."""


@dataclass(frozen=True)
class Noise:
    """Predictions before the step, and the standard deviation of rounding in a change of each. For a named loss,
    whether its gradient is a difference of nearly equal numbers where a source is learned; for another, the share of
    each source's loss gradient that rounding turns."""

    source_before: Float[Tensor, "n batch k"]
    source: Float[Tensor, "n batch k"]
    target: Float[Tensor, "m k"]
    gradient_cancels: bool
    computed_in: float = 0.0
    """The rounding unit of the coarsest precision inside the network, if coarser than that of the predictions."""
    drift: float = 0.0
    """The rounding of the drift, if changes are not differences of predictions."""
    step: float = 0.0
    """The rounding of a displacement, as a share of it."""
    turned: Float[Tensor, " n"] | None = None
    forward: float = 0.0
    """The share of changes by which the rounding of activations moves them."""
    outputs: float = 0.0
    """How far rounding moves a typical prediction, where `source` does not say it of each."""
    decided: Bool[Tensor, " n"] | None = None
    """The sources whose gradient rounding decides: their rows are not known."""

    @classmethod
    def measure(cls, job: Job, runner: Runner, rounding: OutputRounding | None = None) -> Noise:
        """Null steps at the sources and targets of a job; at a few targets where the runner does not subtract, unless
        their `rounding` is known."""
        at_once = max(1, job.memory // job.footprint.forward())
        target_before = runner.target_before
        target = null_noise(job, job.target_inputs, target_before, at_once) if runner.subtracts else None
        if job.targets_are_sources:
            source_before, source = target_before, target
        else:
            inputs = job.examples()
            source_before = job.predict(job.bound.params, inputs, at_once)
            source = null_noise(job, inputs, source_before, at_once) if runner.subtracts else None
        batches = (-1, job.batch, target_before.shape[1])
        source_before = source_before.reshape(batches)
        if target is None:
            outputs = rounding or rounding_at_few(job, target_before)
        else:
            outputs = OutputRounding.of(target_before, target)
        forward = outputs.share if rounding else _lost(outputs.share, lost_in_changes(job))
        typical = outputs.typical if source is None else 0.0
        source = torch.zeros_like(source_before) if source is None else source.reshape(batches)
        return cls(
            source_before,
            source,
            torch.zeros_like(target_before) if target is None else target,
            gradient_cancels(job.bound.loss_function, job.source_labels),
            job.bound.replica.coarsest,
            0.0 if runner.subtracts else _drift_noise(job, runner),
            _step_rounding(job),
            turned_by_rounding(job, source_before, job.source_labels, source.clamp_min(typical)),
            forward,
            typical,
            None if rounding else decided_by_rounding(job),
        )

    @property
    def notes(self) -> list[str]:
        """What a reader of the result should know."""
        if self.forward <= WELL_CONDITIONED:
            return []
        return [
            f"rounding moves predictions or their changes by {self.forward:.1g} of their size: the network loses "
            "digits, as of inputs that are large beside their spread; scale them, or measure in float64, "
            "problem.to(torch.float64)"
        ]

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
            None if self.turned is None else finer * self.turned[rows].to(dtype),
            finer * self.forward,
            finer * self.outputs,
        )

    def of_rows(self, rows: Rows) -> Float[Tensor, "c batch k"]:
        """The noise of the first c sources' own changes, with the terms of each row. It is at least the root of the
        smallest number, because norms square it."""
        change, gradient, realized = rows.source_change, rows.loss_gradient, rows.realized
        eps = torch.finfo(change.dtype).eps
        share = (realized - 1).abs() + ROUNDING * eps + self.step + self._turned(gradient, eps)
        share = share + self.forward
        if self.decided is not None:
            share = share + self.decided[: len(change)]
        typical = _size(change) / change[0].numel() ** 0.5
        of_row = (share * typical)[:, None, None]
        noise = torch.hypot(rows.subtracted[:, None, None] * self.source[: len(change)], of_row + self.drift)
        return noise.clamp_min(torch.finfo(change.dtype).tiny ** 0.5)

    def _turned(self, gradient: Float[Tensor, "c batch k"], eps: float) -> Tensor | float:
        """The share of the first c loss gradients that rounding turns; one output has no direction."""
        if gradient[0].numel() == 1:
            return 0.0
        if self.turned is not None:
            return self.turned[: len(gradient)]
        before = self.source_before[: len(gradient)].abs()
        counts = (gradient != 0) | (before < HUGE)
        largest = torch.where(counts, before, 0).flatten(1).amax(1)
        rounded = _size(torch.where(counts, self.source[: len(gradient)].clamp_min(self.outputs), 0))
        if not self.gradient_cancels:
            return torch.maximum(eps * largest, rounded)
        size = _size(gradient).clamp_min(torch.finfo(gradient.dtype).tiny)
        return torch.maximum(eps * largest.clamp_min(1), rounded) / size


def _lost(of_predictions: float, of_changes: float | None) -> float:
    """The share of a change that lost digits make: of changes themselves if it is known. What rounding does to
    predictions is less certain, as of a network whose predictions are nearly equal."""
    if of_changes is None:
        return of_predictions
    of_predictions = of_predictions if of_predictions > CERTAIN else 0.0
    return max(of_predictions, of_changes if of_changes > WELL_CONDITIONED else 0.0)


def turned_by_rounding(
    job: Job,
    outputs: Float[Tensor, "n batch k"],
    labels: Tensor,
    noise: Float[Tensor, "n batch k"] | None = None,
) -> Float[Tensor, " n"] | None:
    """The share of each source's loss gradient ∂ℓ/∂f that rounding turns, for a loss of the user's; None for a named
    loss, and for a single output, whose gradient has no direction.

    The outputs are rounded: each is moved by its last digits, or by its `noise` if that is known and more, and the
    change of the gradient across its own direction counts. The loss rounds as well, so the results of its kernels are
    moved too. A kernel that computes p − 1 inside loses what is below a unit in the last place of its largest gradient,
    which is found at outputs of exchanged and of equal classes.
    """
    if job.bound.problem.loss_is_named or outputs[0].numel() == 1:
        return None
    eps = torch.finfo(outputs.dtype).eps

    def gradients(at: Tensor) -> Tensor:
        return job.bound.loss_gradients(at.reshape(-1, *job.output_shape), labels).flatten(1)

    slope = gradients(outputs)
    size = slope.abs().amax(1, keepdim=True).clamp_min(torch.finfo(slope.dtype).tiny)
    along = torch.nn.functional.normalize(slope / size, dim=1)
    unit = eps * outputs.abs().clamp_min(1)
    if noise is not None:
        unit = torch.where((slope.view_as(outputs) != 0) | (outputs.abs() < HUGE), torch.maximum(unit, noise), unit)
    unit = torch.where(outputs.isfinite(), unit, 0)
    try:
        each = outputs.reshape(-1, *job.output_shape), labels.flatten(0, 1)
        least, most = (0.0, 1.0) if takes_probabilities_only(job.bound.loss_function, *each) else (-math.inf, math.inf)
        moves = [UNITS * unit * alternating_signs(outputs[0], pattern) for pattern in range(PATTERNS)]
        moved = [(gradients((outputs + move).clamp(least, most)) - slope) / (UNITS * size) for move in moves]
        others = [gradients(at) / size for at in _far_from(outputs, job.output_shape)]
    except Exception as error:  # whatever a loss raises at outputs that it does not take, such as a probability of 1.1
        if not may_be_passed_over(error):
            raise
        moved, others = [unit.flatten(1) / size], []
    turned = _across(moved, along)
    try:
        again = lambda: gradients(outputs)
        patterns = [Rounding.alternating(outputs.device, pattern) for pattern in range(PATTERNS)]
        rounded = [run_rounded(pattern, again, again) for pattern in patterns]
        turned = torch.hypot(turned, _across([(gradient - slope) / size for gradient in rounded], along))
    except Exception as error:  # a loss that checks its own numbers
        if not may_be_passed_over(error):
            raise
    for other in others:
        turned = torch.maximum(turned, eps * _size(other).nan_to_num(0.0, 0.0))
    return turned / _size(slope / size).clamp_min(eps)


def _across(changes: list[Tensor], along: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
    """The root mean square length of what changes of gradients have across these directions."""
    across = [change - (change * along).sum(1, keepdim=True) * along for change in changes]
    return torch.stack([_size(change) for change in across]).square().mean(0).sqrt()


def _far_from(outputs: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Outputs at which a loss has a large gradient, and that it was made for: each in the place of its neighbour on the
    first axis that has any, which are classes or else examples; and all equal along it."""
    each = outputs.reshape(-1, *shape)
    axis = next((axis for axis, length in enumerate(shape, 1) if length > 1), 0)
    return each.roll(1, axis), each.mean(axis, keepdim=True).expand_as(each)


def resolved_rows(
    kind: Kind,
    source_before: Float[Tensor, "c batch k"],
    source_change: Float[Tensor, "c batch k"],
    source_noise: Float[Tensor, "c batch k"],
    target_before: Float[Tensor, "m k"],
    target_noise: Float[Tensor, "m k"],
    subtracted: Float[Tensor, " c"],
) -> Bool[Tensor, " c"]:
    """Whether each source's own change stands clear of its noise and, where its row is `subtracted`, of every target's.

    Logits are looked at through the softmax as well, where KL ≈ ½ Σ p_i (d_i − p·d)²: a change that is clear as a
    vector may still be hidden there.
    """
    clear = _stands_clear(source_change, source_noise, target_noise, subtracted)
    if kind in ("logits", "binary_probabilities"):
        clear &= not_rounded(kind, source_before).all(-1) & not_rounded(kind, target_before).all()
    if kind == "logits":
        p = source_before.softmax(-1)
        seen = p.sqrt() * (source_change - (p * source_change).sum(-1, keepdim=True))
        clear &= _stands_clear(
            seen,
            _through_softmax(p, source_noise),
            _through_softmax(target_before.softmax(-1), target_noise),
            subtracted,
        )
    return clear & (source_change != 0).flatten(1).any(1)


def not_rounded(kind: Kind, outputs: Float[Tensor, "... k"]) -> Bool[Tensor, "..."]:
    """Whether outputs have the digits that the distribution needs, or float64 would not have more of them.

    The rounding of a logit is a share of it, and it makes as large a share of the probability. The rounding of a
    probability f is a share of f, and makes a larger one of 1 − f where f is nearly 1.
    """
    eps = torch.finfo(outputs.dtype).eps
    if kind == "logits":
        typical = (outputs.softmax(-1) * outputs.abs().clamp_max(HUGE)).sum(-1)
        return eps * typical < LOGIT_ROUNDING
    if kind == "binary_probabilities" and outputs.dtype == torch.float32:
        return ~(eps * outputs > LOGIT_ROUNDING * (1 - outputs).abs()).any(-1)
    return torch.ones(outputs.shape[:-1], dtype=torch.bool, device=outputs.device)


def _stands_clear(change: Tensor, noise: Tensor, at_targets: Tensor, subtracted: Tensor) -> Tensor:
    """In the norms that measures take of k outputs: with √k to spare in the 2-norm, which implies the others, and of
    more than `FEW_OUTPUTS` in each of them."""
    k = noise.shape[-1]
    clear = _exceeds(change, noise, at_targets, subtracted, 2, math.sqrt(min(k, FEW_OUTPUTS)))
    for order in (1, math.inf) if k > FEW_OUTPUTS else ():
        clear &= _exceeds(change, noise, at_targets, subtracted, order)
    return clear


def _exceeds(
    change: Tensor, noise: Tensor, at_targets: Tensor, subtracted: Tensor, order: float, spare: float = 1.0
) -> Tensor:
    largest = _size(at_targets, order).nan_to_num(0.0).max()
    least = torch.maximum(_size(noise, order), subtracted * largest)
    return _size(change, order) >= RESOLVED * spare * least


def _through_softmax(p: Tensor, noise: Tensor) -> Tensor:
    return (p * (1 - p)).sqrt() * noise


def _size(rows: Tensor, order: float = 2) -> Tensor:
    return torch.linalg.vector_norm(rows.flatten(1), order, dim=1)


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
    """The largest share that the rounding of weights, with signs at random, is of ⟨g, Δ⟩ for a few sources."""
    unit = job.update.rounding(job.bound.problem) if isinstance(job.update, FromOptimizer) else 0.0
    fine = unit <= torch.finfo(torch.float64).eps
    if not unit or (fine and job.update.step_size > SMALL_STEPS):
        return 0.0
    params = job.bound.params
    shares = []
    for row in spread(job.n, STEPS_LOOKED_AT, job.bound.device).tolist():
        _, _, gradient = job.bound.step_gradient(leaves_of(params), *job.source(row), reached=True)
        moved = job.rule(params, gradient)
        rounded = math.hypot(*(float((g * params[name]).norm()) for name, g in gradient.items()))
        whole = abs(sum(float((g * moved[name]).sum()) for name, g in gradient.items()))
        shares.append(unit / 2 * rounded / whole if whole else 0.0)
    return max(shares)
