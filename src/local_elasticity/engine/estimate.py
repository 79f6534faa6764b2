"""estimate: what a measurement will cost, before anything long begins."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from torch import nn

from local_elasticity.engine.auto import AutoRunner
from local_elasticity.engine.clock import now
from local_elasticity.engine.guard import untouched
from local_elasticity.engine.inputs import take
from local_elasticity.engine.jacobian import inner, jacobian_factors
from local_elasticity.engine.job import Engine, Job, Runner
from local_elasticity.engine.layout import with_layout
from local_elasticity.engine.linearized import LinearizedRunner
from local_elasticity.engine.loss import LossFunction
from local_elasticity.engine.problem import Problem, as_problem
from local_elasticity.engine.respond import resolve_engine
from local_elasticity.engine.update import DEFAULT_UPDATE, Update

TRIED, MANY = 8, 32
"""Examples on which Jacobians are timed; sizes of the chunks of rows that are timed, where the engine takes so many."""


@dataclass(frozen=True)
class Estimate:
    """Which engine, about how many seconds, at most how many bytes (result and working memory), and why."""

    engine: str
    seconds: float
    bytes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.engine}: {self._cost} ({self.reason})"

    def _repr_html_(self) -> str:
        return f"<b>{escape(self.engine)}</b>: {self._cost}<br><small>{escape(self.reason)}</small>"

    @property
    def _cost(self) -> str:
        return f"about {self.seconds:.3g} s, at most {self.bytes / 2**20:,.0f} MiB"


@untouched
def estimate(
    problem: Problem | nn.Module,
    sources: Any,
    targets: Any = None,
    *,
    loss: str | LossFunction | None = None,
    update: Update = DEFAULT_UPDATE,
    engine: str | Engine = "auto",
    approximate: bool = False,
    source_batch_size: int | None = None,
    memory: int | None = None,
) -> Estimate:
    """Time a few rows as `respond` would compute them and scale up. Takes the arguments of `respond`.

    >>> import torch, local_elasticity as le
    >>> problem = le.Problem.of(torch.nn.Linear(4, 2), "cross_entropy")
    >>> cost = le.estimate(problem, (torch.randn(100, 4), torch.zeros(100).long()))
    >>> cost.engine in ("looped", "vmapped", "structured") and cost.seconds < 60
    True
    """
    problem = as_problem(problem, loss)
    chosen = resolve_engine(engine, approximate)
    with problem.moment() as moment:
        job = Job.read(moment, sources, targets, update, source_batch_size=source_batch_size, memory=memory)
        runner = chosen.runner(job)
        if isinstance(runner, AutoRunner):
            per_row, reason = _race(job, runner)
            name, seconds = runner.name, job.n * per_row
        else:
            name = type(chosen).__name__.lower()
            seconds, reason = _linearized(job, runner) if isinstance(runner, LinearizedRunner) else _timed(job, runner)
    result = job.n * job.m * job.k * torch.finfo(job.moment.dtype).bits // 8
    return Estimate(name, seconds, result + min(runner.bytes, job.memory), reason)


def _race(job: Job, runner: AutoRunner) -> tuple[float, str]:
    """Run the trials of auto and take its best time."""
    done = 0
    while runner.trials and done < job.n:
        stop = min(done + runner.chunk, job.n)
        runner.rows(done, stop)
        done = stop
    why = "".join(f"{note}; " for note in runner.notes)
    if runner.seconds == float("inf"):
        seconds, reason = _timed(job, runner.best.runner)
        return seconds / job.n, why + reason
    return runner.seconds, why + "rows that the model's precision does not resolve are computed again in float64"


def _timed(job: Job, runner: Runner) -> tuple[float, str]:
    """A small chunk and a larger one: what a chunk takes whatever its size, and what each of its rows adds."""
    largest = min(runner.chunk, job.n)
    few, many = min(largest, TRIED), min(largest, MANY)
    runner.rows(0, 1)
    seconds = _seconds(job, runner, few)
    if few == many:
        return seconds * job.n / few, f"timed on {few} of {job.n} rows"
    a_row = max(0.0, _seconds(job, runner, many) - seconds) / (many - few)
    chunks = -(-job.n // largest)
    return job.n * a_row + chunks * max(0.0, seconds - few * a_row), f"timed on {many} of {job.n} rows"


def _seconds(job: Job, runner: Runner, rows: int) -> float:
    began = _now(job)
    runner.rows(0, rows)
    return _now(job) - began


def _linearized(job: Job, runner: LinearizedRunner) -> tuple[float, str]:
    """Backward passes for every example, and one product of matrices with p columns for every pair."""
    few = take(job.target_inputs, slice(0, TRIED))
    for _ in range(2):
        began = _now(job)
        factors = with_layout(job.moment, few, lambda layout: jacobian_factors(job.moment, layout, few)[1])
        passes = _now(job) - began
    began = _now(job)
    inner(factors, factors)
    products = _now(job) - began
    tried = min(TRIED, job.m)
    blocks = -(-job.m // runner.block)
    examples = job.m if job.targets_are_sources and blocks == 1 else job.m + job.n * job.batch * blocks
    pairs = job.n * job.m / job.k
    return passes * examples / tried + products * pairs / tried**2, f"timed on {tried} of {examples} backward passes"


def _now(job: Job) -> float:
    return now(job.moment.device)
