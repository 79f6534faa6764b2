"""Drift: what momentum and weight decay move in a step whose gradient is zero, the same for every source.

With `FromOptimizer(..., drift="remove")` changes are counted from the model after such a step, so that they are what
the source's own gradient adds: f(x′; w⁺(g)) − f(x′; w⁺(0)). Any engine computes both, and the second is
subtracted here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from local_elasticity.engine.job import Job, Runner
from local_elasticity.engine.noise import ROUNDING, Noise
from local_elasticity.engine.problem import Inputs
from local_elasticity.engine.rows import Rows, own_change
from local_elasticity.engine.update import without_gradient
from local_elasticity.shapes import Float


def without_drift(job: Job, make: Callable[[Job], Runner]) -> Runner:
    """The runner that `make` creates for a job, with the drift subtracted from its rows."""
    runner = make(job)
    job.check_company(runner.target_before)
    _check_reach(job)
    still = replace(job.part(1), rule=without_gradient(job.rule), targets_are_sources=False)

    def drift_at(inputs: Inputs) -> Tensor:
        some = replace(still, target_inputs=inputs)
        return make(some).rows(0, 1).target_change[0]

    at_targets = drift_at(job.target_inputs)
    at_sources = at_targets if job.targets_are_sources else drift_at(job.examples())
    return DriftlessRunner(job, runner, at_sources.reshape(job.n, job.batch, -1), at_targets)


def _check_reach(job: Job) -> None:
    """Raise a ValueError if a source reaches other parameters than the first: the optimizer skips those without a
    gradient, so that the drift is not the same for all."""
    missed = job.unreached_by(0)
    for row in range(1, job.n):
        other = set(job.unreached_by(row)) ^ set(missed)
        if other:
            raise ValueError(
                f'update: drift="remove" takes the same drift off all sources, but source {row} reaches other '
                f"parameters than the first ({min(other)}), and the optimizer skips what is not reached; pass "
                'drift="keep"'
            )


class DriftlessRunner(Runner):
    """Subtracts the drift from the rows of another runner."""

    subtracts = True

    def __init__(
        self, job: Job, runner: Runner, at_sources: Float[Tensor, "n batch k"], at_targets: Float[Tensor, "m k"]
    ) -> None:
        super().__init__(job)
        self.runner, self.at_sources, self.at_targets = runner, at_sources, at_targets
        self.chunk, self.notes = runner.chunk, runner.notes
        self.target_before = runner.target_before + at_targets

    @property
    def bytes(self) -> int:
        return self.runner.bytes

    def shrink(self) -> bool:
        shrunk = self.runner.shrink()
        self.chunk = self.runner.chunk
        return shrunk

    def rows(self, start: int, stop: int) -> Rows:
        found = self.runner.rows(start, stop)
        target_change = found.target_change - self.at_targets
        if self.job.targets_are_sources:
            source_change = own_change(target_change, start)
        else:
            source_change = found.source_change - self.at_sources[start:stop]
        ones = torch.ones_like(found.subtracted)
        return Rows(source_change, target_change, found.loss_gradient, found.realized, ones, found.done)

    def noise(self) -> Noise:
        """The noise of its rows: that of the other runner, and the rounding of the drift that is subtracted."""
        noise = Noise.measure(self.runner.job, self.runner)
        eps = ROUNDING * torch.finfo(self.at_targets.dtype).eps
        source = torch.hypot(noise.source * self.runner.subtracts, eps * self.at_sources.abs())
        target = torch.hypot(noise.target * self.runner.subtracts, eps * self.at_targets.abs())
        return replace(noise, source_before=noise.source_before + self.at_sources, source=source, target=target)
