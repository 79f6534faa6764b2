"""Vmapped: many sources at once, each with its own weights, by `torch.func`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, vmap

from local_elasticity.engine.guard import vectorized
from local_elasticity.engine.inputs import take
from local_elasticity.engine.job import Job, Runner
from local_elasticity.engine.problem import Inputs
from local_elasticity.engine.replica import Params
from local_elasticity.engine.rows import Rows, own_change
from local_elasticity.engine.stepped_weights import realized_step
from local_elasticity.engine.structured import spot_check
from local_elasticity.engine.supported import UnsupportedModelError


@dataclass(frozen=True)
class Vmapped:
    """Several sources in one vectorised pass. Exact.

    Needs a module that vmap can take: no in-place or data-dependent operations, no LSTM.

    Args:
        chunk: how many sources; by default as many as fit in memory.
    """

    chunk: int | None = None
    exact = True

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk: expected a positive whole number, got {self.chunk!r}")

    def runner(self, job: Job) -> VmappedRunner:
        job.refuse_hooks("Vmapped")
        if not job.vectorizes:
            raise ValueError(
                f"engine: {type(job.update).__name__} with this optimizer cannot be vectorised; use engine=le.Looped()"
            )
        check_vmap(job)
        return VmappedRunner(job, self.chunk)


def check_vmap(job: Job) -> None:
    """Raise an UnsupportedModelError if vmap cannot take the network or the step, or differs from the loop."""
    effects = job.bound.replica.effects
    if effects is None or effects.tensors:
        raise UnsupportedModelError("engine: Vmapped cannot follow a forward pass that writes weights or buffers")
    if job.unreached:
        raise UnsupportedModelError(
            f"engine: Vmapped cannot tell that the optimizer skips {job.unreached[0]}, which a source does not reach"
        )
    spot_check(job, VmappedRunner, "Vmapped")


class VmappedRunner(Runner):
    subtracts = True

    def __init__(self, job: Job, chunk: int | None = None, target_before: Tensor | None = None) -> None:
        self.job = job
        size = job.footprint
        self.per_source = 4 * size.parameters + size.backward(job.batch)
        at_once = max(1, job.memory // 2 // max(1, size.forward()))
        self.at_once = min(job.m, at_once)
        fitting = max(1, job.memory // (self.per_source + size.forward(self.at_once)))
        self.chunk = min(job.n, fitting, chunk or job.n)
        if target_before is None:
            target_before = job.predict(job.bound.params, job.target_inputs, self.at_once)
        self.target_before = target_before

    @property
    def bytes(self) -> int:
        return self.chunk * (self.per_source + self.job.footprint.forward(self.at_once))

    def shrink(self) -> bool:
        if self.chunk > 1:
            self.chunk //= 2
            return True
        smaller = max(1, self.at_once // 2)
        shrunk, self.at_once = smaller < self.at_once, smaller
        return shrunk

    def rows(self, start: int, stop: int) -> Rows:
        job = self.job
        rows = slice(start, stop)
        inputs, labels = take(job.source_inputs, rows), job.source_labels[rows]
        with torch.no_grad(), vectorized():
            loss_gradient, source_change, realized, after = vmap(self._step, in_dims=(0, 0))(inputs, labels)
            target_change = self._target_change(after)
        if job.targets_are_sources:
            source_change = own_change(target_change, start)
        return Rows.of(source_change, target_change, loss_gradient, realized, subtracted=True)

    def _step(self, inputs: Inputs, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Params]:
        """One source: its loss gradient, its own change, the share of the step that was realized, and w⁺."""
        bound, params = self.job.bound, self.job.bound.params
        gradient, (before, loss_gradient) = grad(self._loss, has_aux=True)(params, inputs, labels)
        moved = self.job.rule(params, gradient)
        after = {name: p + moved[name] for name, p in params.items()}
        change = bound.predict(after, inputs) - before
        return loss_gradient, change, realized_step(params, after, gradient, moved), after

    def _loss(self, params: Params, inputs: Inputs, labels: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        bound = self.job.bound
        outputs = bound.outputs(params, inputs)
        loss_of_outputs: Callable[[Tensor], Tensor] = lambda read: bound.loss(read, labels)
        loss_gradient = grad(loss_of_outputs)(outputs)
        batch = len(outputs)
        return bound.loss(outputs, labels), (outputs.reshape(batch, -1), loss_gradient.reshape(batch, -1))

    def _target_change(self, after: Params) -> Tensor:
        job = self.job
        parts = []
        for i in range(0, job.m, self.at_once):
            block = slice(i, i + self.at_once)
            inputs = take(job.target_inputs, block)
            predictions = vmap(job.bound.predict, in_dims=(0, None))(after, inputs)
            parts.append(predictions - self.target_before[block])
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
