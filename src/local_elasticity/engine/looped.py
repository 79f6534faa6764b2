"""Looped: the definition, implemented directly. Any module, any rule; the reference for all other engines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from local_elasticity.engine.job import Job, Runner
from local_elasticity.engine.problem import as_predictions, leaves_of
from local_elasticity.engine.progress import now
from local_elasticity.engine.replica import Params
from local_elasticity.engine.rows import Rows
from local_elasticity.engine.update import FromOptimizer

SAMPLED_ROWS, SAMPLED = 16, 1 << 14
"""How many weights of each tensor are looked at, in so many rows, to see whether rounding swallowed the step."""


@dataclass(frozen=True)
class Looped:
    """For each source: gradient, step, predictions of all targets, subtract. Exact.

    Args:
        at_once: how many targets go through the network in a pass, at most. It changes the speed alone.
        channels_last: keep the weights of convolutions in that layout. It changes the speed alone.
    """

    at_once: int | None = None
    channels_last: bool = False

    def __post_init__(self) -> None:
        if self.at_once is not None and self.at_once < 1:
            raise ValueError(f"at_once: expected a positive whole number, got {self.at_once!r}")

    @property
    def exact(self) -> bool:
        return True

    def runner(self, job: Job) -> LoopedRunner:
        return LoopedRunner(job, self.at_once, self.channels_last)


class LoopedRunner(Runner):
    """One row at a time; the stepped weights live in one set of buffers that every row reuses."""

    chunk = 1
    subtracts = True

    def __init__(self, job: Job, at_once: int | None = None, channels_last: bool = False) -> None:
        self.job = job
        self.channels_last = channels_last
        self.skips = isinstance(job.update, FromOptimizer)
        self.fixed = 4 * job.footprint.parameters + job.footprint.backward(job.batch)
        fitting = (job.memory - self.fixed) // job.footprint.forward()
        self.at_once = max(1, min(job.m, fitting, at_once or job.m))
        self.params = {name: _laid_out(p, channels_last) for name, p in job.bound.params.items()}
        self.leaves = leaves_of(self.params)
        self.after = {name: torch.empty_like(p) for name, p in self.params.items()}
        self.target_inputs = tree_map(lambda leaf: _laid_out(leaf, channels_last), job.target_inputs)
        self.target_before = job.predict(self.params, self.target_inputs, self.at_once)

    @property
    def bytes(self) -> int:
        return self.fixed + self.job.footprint.forward(self.at_once)

    def shrink(self) -> bool:
        smaller = max(1, self.at_once // 2)
        shrunk = smaller < self.at_once
        self.at_once = smaller
        self.target_before = self.job.predict(self.params, self.target_inputs, self.at_once)
        return shrunk

    def rows(self, start: int, stop: int) -> Rows:
        rows = [self._row(row) for row in range(start, stop)]
        source_change, target_change, loss_gradient, realized = (torch.stack(part) for part in zip(*rows, strict=True))
        return Rows.of(source_change, target_change, loss_gradient, realized, subtracted=True)

    def _row(self, row: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        job = self.job
        before, loss_gradient, found = self.gradient(row)
        with torch.no_grad():
            realized = self._step(found)
            target_change = job.predict(self.after, self.target_inputs, self.at_once) - self.target_before
            if job.targets_are_sources:
                source_change = target_change[row, None]
            else:
                source_change = job.bound.predict(self.after, job.source(row)[0]) - before
        return source_change, target_change, loss_gradient, realized

    def _step(self, gradient: Params) -> Tensor:
        """Put w⁺ into the buffers; plain steps in one pass over memory. Returns the share that rounding left of it."""
        params, job = self.job.bound.left_by_forward(self.params), self.job
        moved, scale = (gradient, -job.update.step_size) if job.plain else (job.rule(params, gradient), 1.0)
        after = list(self.after.values())
        torch._foreach_copy_(after, list(params.values()))
        torch._foreach_add_([self.after[name] for name in moved], list(moved.values()), alpha=scale)
        return realized_step({name: params[name] for name in moved}, self.after, gradient, moved, scale)

    def gradient(self, row: int) -> tuple[Tensor, Tensor, Params]:
        """Predictions on the source, ∂ℓ/∂f there, and ∇_w ℓ."""
        bound = self.job.bound
        outputs, along, found = bound.step_gradient(self.leaves, *self.job.source(row), reached=self.skips)
        return as_predictions(outputs), along, found


def seconds_of_a_row(job: Job) -> float:
    """The seconds that the loop needs for a row after its warm-up."""
    runner = LoopedRunner(job)
    runner.rows(0, 1)
    began = now(job.bound.device)
    for _ in range(2):
        runner.rows(0, 1)
    return (now(job.bound.device) - began) / 2


def realized_step(params: Params, after: Params, gradient: Params, moved: Params, scale: float = 1.0) -> Tensor:
    """⟨g, fl(w + Δ) − w⟩ / ⟨g, Δ⟩ for Δ = scale · moved, from a sample of the weights; 1 if there is no step."""

    def some(part: Params) -> Tensor:
        return torch.cat([_sampled(part[name]).reshape(-1) for name in params])

    before, there, g = some(params), some(after), some(gradient)
    step = g if moved is gradient else some(moved)
    g = g * _stands_for(tuple((name, p.shape) for name, p in params.items()), g.device).to(g.dtype)
    total = torch.dot(g, step) * scale
    return torch.where(total == 0, torch.ones_like(total), torch.dot(g, there - before) / total)


@lru_cache(maxsize=8)
def _stands_for(shapes: tuple[tuple[str, torch.Size], ...], device: torch.device) -> Tensor:
    """How many weights each of those that are looked at stands for."""
    with torch.no_grad():
        sizes = [(shape.numel(), _sampled(torch.empty(shape, device="meta")).numel()) for _, shape in shapes]
        return torch.cat([torch.full((count,), size / count, device=device) for size, count in sizes])


def _sampled(tensor: Tensor) -> Tensor:
    """Some rows, evenly spaced, and the first columns of each."""
    if tensor.ndim == 0:
        return tensor
    rows = tensor[:: max(1, len(tensor) // SAMPLED_ROWS)]
    return rows if tensor.ndim == 1 else rows[:, : max(1, SAMPLED // rows[:, 0].numel())]


def _laid_out(tensor: Tensor, channels_last: bool) -> Tensor:
    """Images and filters channel by channel, or place by place; with one channel only the strides tell which."""
    if not channels_last or tensor.ndim != 4:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device, memory_format=torch.channels_last).copy_(
        tensor
    )
