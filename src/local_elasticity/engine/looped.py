"""Looped: the definition, implemented directly. Any module, any rule; the reference for all other engines."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from local_elasticity.checks import check_count
from local_elasticity.engine.coverage import Coverage
from local_elasticity.engine.jacobian import factors_along
from local_elasticity.engine.job import Job, Runner, predictions
from local_elasticity.engine.layouts import CRASHES, batches_with_channels_last, channels_last, group_norms_of
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.problem import Inputs, as_predictions, leaves_of, sizes_of
from local_elasticity.engine.progress import now
from local_elasticity.engine.replica import Params
from local_elasticity.engine.rows import Rows
from local_elasticity.engine.stepped_weights import Pieces, realized_share
from local_elasticity.engine.supported import UnsupportedModelError
from local_elasticity.engine.tape import ReusedParameterError
from local_elasticity.engine.update import FromOptimizer
from local_elasticity.shapes import Float


@dataclass(frozen=True)
class Looped:
    """For each source: gradient, step, predictions of all targets, subtract. Exact.

    Args:
        at_once: how many targets go through the network in a pass, at most. It changes the speed alone.
        channels_last: keep the weights of convolutions in that layout. It changes the speed alone; a network whose
            gradients depend on the layout is refused.
        gradients_at_once: of how many sources one backward pass computes the gradients, in networks whose layers allow
            that. It changes the speed alone.
    """

    at_once: int | None = None
    channels_last: bool = False
    gradients_at_once: int = 1
    exact = True

    def __post_init__(self) -> None:
        for name in ("at_once", "gradients_at_once"):
            given = getattr(self, name)
            if given is not None:
                check_count(name, given)

    def __repr__(self) -> str:
        """The newest option only where it is set, so that it is the engine that older stores name."""
        together = f", gradients_at_once={self.gradients_at_once}" if self.gradients_at_once > 1 else ""
        return f"Looped(at_once={self.at_once}, channels_last={self.channels_last}{together})"

    def runner(self, job: Job) -> LoopedRunner:
        return LoopedRunner(job, self.at_once, self.channels_last, self.gradients_at_once)


class LoopedRunner(Runner):
    """One row at a time; the stepped weights live in one set of buffers that every row reuses."""

    subtracts = True

    def __init__(
        self, job: Job, at_once: int | None = None, channels_last: bool = False, gradients_at_once: int = 1
    ) -> None:
        self.job = job = _with_channels_last(job) if channels_last else job
        self.skips = isinstance(job.update, FromOptimizer)
        self.coverage = _coverage(job) if gradients_at_once > 1 else None
        self.chunk = min(job.n, gradients_at_once) if self.coverage is not None else 1
        size = job.footprint
        self.fixed = (4 if job.plain else 6) * size.parameters
        self.of_gradients = 2 * size.parameters + size.backward(job.batch)
        fitting = (job.memory - self.fixed - self.of_gradients * self.chunk) // size.forward()
        self.at_once = max(1, min(job.m, fitting, at_once or job.m))
        self.params = job.bound.params
        self.leaves = leaves_of(self.params)
        self.before, self.gradients, self.after = (Pieces(self.params) for _ in range(3))
        self.moved = self.gradients if job.plain else Pieces(self.params)
        self.before.put(self.params)
        self._predict_before()

    def _predict_before(self) -> None:
        self.raw_before = self._raw(self.params, self.job.target_inputs)
        self.target_before = self.raw_before.to(self.job.bound.dtype)

    def _raw(self, params: Params, inputs: Inputs) -> Float[Tensor, "b k"]:
        """Predictions in the precision that the model gives: a sum of many terms in float64 keeps the digits of their
        changes."""
        return predictions(self.job.bound, params, inputs, self.at_once, raw=True)

    @property
    def bytes(self) -> int:
        return self.fixed + self.of_gradients * self.chunk + self.job.footprint.forward(self.at_once)

    def shrink(self) -> bool:
        if self.chunk > 1:
            self.chunk //= 2
            return True
        smaller = max(1, self.at_once // 2)
        shrunk = smaller < self.at_once
        self.at_once = smaller
        self._predict_before()
        return shrunk

    def rows(self, start: int, stop: int) -> Rows:
        sources = range(start, stop)
        found = self._together(start, stop) or (self.gradient(row) for row in sources)
        rows = [self._row(row, *one) for row, one in zip(sources, found, strict=True)]
        source_change, target_change, loss_gradient, realized = (torch.stack(part) for part in zip(*rows, strict=True))
        return Rows.of(source_change, target_change, loss_gradient, realized, subtracted=True)

    def _row(
        self, row: int, before: Tensor, loss_gradient: Tensor, gradient: Params
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        job = self.job
        with torch.no_grad():
            realized = self._step(row, gradient)
            after = self.after.tensors()
            target_change = (self._raw(after, self.job.target_inputs) - self.raw_before).to(before.dtype)
            if job.targets_are_sources:
                source_change = target_change[row, None]
            else:
                source = job.source(row)[0]
                before = before if self.raw_before.dtype == before.dtype else self._raw(self.params, source)
                source_change = (self._raw(after, source) - before).to(job.bound.dtype)
        return source_change, target_change, loss_gradient, realized

    def _step(self, row: int, gradient: Params) -> Tensor:
        """Put w⁺ into the buffers. Returns the share that rounding left of the step."""
        job = self.job
        params = job.bound.left_by_forward(self.params)
        self.before.put({name: params[name] for name in job.bound.replica.written if name in params})
        self.gradients.put_alone(gradient)
        moved, scale = self.gradients, -job.update.step_size
        if not job.plain:
            self.moved.put_alone(job.rule(params, gradient))
            moved, scale = self.moved, 1.0
        self.after.step(self.before, moved, scale)
        if job.sampled is not None and row in job.sampled.sources:
            job.sampled.displacements[row] = {name: scale * part for name, part in moved.parts.items()}
        before, after, g = (part.sampled() for part in (self.before, self.after, self.gradients))
        step = g if job.plain else moved.sampled()
        return realized_share(before, after, g, step, self.before.stand_for, scale)

    def gradient(self, row: int) -> tuple[Tensor, Tensor, Params]:
        """Predictions on the source, ∂ℓ/∂f there, and ∇_w ℓ."""
        bound = self.job.bound
        outputs, along, found = bound.step_gradient(self.leaves, *self.job.source(row), reached=self.skips)
        return as_predictions(outputs), along, found

    def _together(self, start: int, stop: int) -> list[tuple[Tensor, Tensor, Params]] | None:
        """The same for several sources, from one backward pass over them; None where that is not possible, or where
        the last of them has another gradient alone."""
        if self.coverage is None or stop - start == 1:
            return None
        job = self.job
        examples = job.examples(slice(start, stop))
        try:
            tape = self.coverage.record(job.bound, examples)
            loss_gradient = job.bound.loss_gradients(tape.outputs, job.source_labels[start:stop])
            cotangents = loss_gradient.flatten(0, 1)[:, None]
            of_examples = factors_along(job.bound, self.coverage, tape, examples, cotangents).matrices()
        except ReusedParameterError:
            self.coverage = None
            return None
        gradients = {
            name: part[:, 0].unflatten(0, (-1, job.batch)).sum(1).reshape(-1, *job.bound.params[name].shape)
            for name, part in of_examples.items()
        }
        before = tape.predictions.detach().unflatten(0, (-1, job.batch))
        last = self.gradient(stop - 1)
        if not _same_gradient({name: part[-1] for name, part in gradients.items()}, last[2]):
            self.coverage = None
            return None
        each = range(stop - start)
        return [(before[i], loss_gradient[i], {name: part[i] for name, part in gradients.items()}) for i in each]


def seconds_of_a_row(job: Job) -> float:
    """The seconds that the loop needs for a row after its warm-up."""
    runner = LoopedRunner(job)
    runner.rows(0, 1)
    began = now(job.bound.device)
    for _ in range(2):
        runner.rows(0, 1)
    return (now(job.bound.device) - began) / 2


def _coverage(job: Job) -> Coverage | None:
    """What gradients of several sources are computed by in one backward pass; None for networks and updates where that
    is not possible."""
    effects = job.bound.replica.effects
    one_by_one = effects is None or effects.tensors or effects.reads or job.bound.alters_gradients
    if one_by_one or (isinstance(job.update, FromOptimizer) and not job.plain):
        return None
    try:
        found = Coverage.of(job.bound, job.examples())
    except UnsupportedModelError:
        return None
    return None if found.unsupported else found


def _same_gradient(found: Params, expected: Params) -> bool:
    """Whether gradients are the same up to rounding, as a share of the norm of all of them. What is not found is 0: the
    parameter does not reach the output."""
    apart = [found[name] - part if name in found else part for name, part in expected.items()]
    off = torch.stack(torch._foreach_norm(apart)).norm()
    size = torch.stack(torch._foreach_norm(list(expected.values()))).norm()
    return bool(off <= torch.finfo(off.dtype).eps ** 0.5 * size)


def _with_channels_last(job: Job) -> Job:
    """The same job with its images and filters in that layout, in which kernels may round otherwise; an
    UnsupportedModelError if its gradients are others there."""
    other = _laid_out_job(job)
    if group_norms_of(partial(other.bound.outputs, leaves_of(other.bound.params)), other.examples()).crash:
        raise UnsupportedModelError(f"engine: {CRASHES}; use engine='auto' or Looped() without channels_last")
    if not _gradients_are_the_same(job, other):
        raise UnsupportedModelError(
            "engine: the gradients of this network depend on the layout of images in memory, as torch's instance norm "
            "computes them on CPUs; use engine='auto' or Looped() without channels_last"
        )
    return other


_the_same: ModelCache[bool] = ModelCache()
"""Whether gradients are the same with channels last, for the same weights and shapes."""


def _gradients_are_the_same(job: Job, other: Job) -> bool:
    """Whether some source has the same gradient in both layouts. Another one may differ: rounding decides it where a
    ReLU reads nearly 0. Gradients that are 0 or not finite are not compared."""
    shapes = tuple(leaf.shape[1:] for leaf in tree_leaves(job.source_inputs))
    what = job.bound.dtype, job.bound.device, shapes, *job.bound.sizes
    found = _the_same.get(job.bound, what)
    if found is None:
        pairs = ((_gradient(other, row), _gradient(job, row)) for row in sorted({0, job.n // 2, job.n - 1}))
        compared = ((one, exact) for one, exact in pairs if 0 < math.hypot(*sizes_of(exact.values())) < math.inf)
        first = next(compared, None)
        found = first is None or _same_gradient(*first) or any(_same_gradient(*pair) for pair in compared)
        _the_same.put(job.bound, what, found)
    return found


def _gradient(job: Job, row: int) -> Params:
    return job.bound.step_gradient(leaves_of(job.bound.params), *job.source(row))[2]


def _laid_out_job(job: Job) -> Job:
    """The job with images and filters place by place."""
    bound = replace(job.bound, params={name: channels_last(p) for name, p in job.bound.params.items()})
    sources, targets = (
        tree_map(batches_with_channels_last, job.source_inputs),
        tree_map(channels_last, job.target_inputs),
    )
    return replace(job, bound=bound, source_inputs=sources, target_inputs=targets)
