"""estimate: what a measurement will cost, before anything long begins."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import torch
from torch import nn

from local_elasticity.engine.choose import choose, in_words
from local_elasticity.engine.coverage import with_coverage
from local_elasticity.engine.guard import untouched
from local_elasticity.engine.inputs import take
from local_elasticity.engine.jacobian import inner, jacobian_factors
from local_elasticity.engine.job import Engine, Job, Runner
from local_elasticity.engine.linearized import LinearizedRunner
from local_elasticity.engine.loss import LossFunction
from local_elasticity.engine.noise import Noise
from local_elasticity.engine.problem import Problem, as_problem
from local_elasticity.engine.progress import now, rounded, seconds_in_words
from local_elasticity.engine.respond import clear_rows, resolve_engine
from local_elasticity.engine.rows import Rows, collect
from local_elasticity.engine.update import DEFAULT_UPDATE, Update
from local_elasticity.measurement import Sources, Targets

FEW_ROWS, MORE_ROWS = 8, 32
"""Sizes of the chunks of rows that are timed, where the engine takes so many; the first also of examples whose
Jacobians are timed."""


@dataclass(frozen=True)
class Estimate:
    """What a response would cost.

    Attributes:
        engine: the engine that would compute it.
        seconds: about how long it would take.
        bytes: how much memory it would take at most, the result included.
        reason: how the engine was chosen and the time estimated.

    >>> print(Estimate("looped", 90.0, 3 << 30, "timed on 32 of 1000 rows"))
    looped: about 1.5 min, at most 3.2 GB of memory (timed on 32 of 1000 rows)
    """

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
        return f"about {seconds_in_words(self.seconds)}, at most {bytes_in_words(self.bytes)} of memory"


@untouched
def estimate(
    problem: Problem | nn.Module,
    sources: Sources,
    targets: Targets | None = None,
    *,
    loss: str | LossFunction | None = None,
    update: Update = DEFAULT_UPDATE,
    engine: str | Engine = "auto",
    approximate: bool = False,
    source_batch_size: int | None = None,
    memory: int | None = None,
) -> Estimate:
    """What a response would cost: a few rows are timed as `respond` would compute them, and scaled up.

    Args:
        problem, sources, targets, loss, update, engine, approximate, source_batch_size, memory: as for `respond`.

    Returns:
        An `Estimate`. With `engine="auto"`, rows that will be computed again in float64 count twice.

    Raises:
        ValueError, TypeError: what is wrong with an argument; the message begins with its name.

    >>> import torch, local_elasticity as le
    >>> cost = le.estimate(torch.nn.Linear(4, 2), (torch.randn(100, 4), torch.zeros(100).long()), loss="cross_entropy")
    >>> cost.engine.split()[0] in ("looped", "vmapped", "structured") and cost.seconds > 0
    True
    """
    problem = as_problem(problem, loss)
    chosen = resolve_engine(engine, approximate)
    with problem.bound() as bound:
        job = Job.read(bound, sources, targets, update, source_batch_size=source_batch_size, memory=memory)
        reasons, seconds, refine = [], float("inf"), chosen is None
        if chosen is None:
            choice = choose(job)
            chosen, seconds = choice.engine, choice.seconds * job.n
            reasons.append(choice.reason)
        runner = chosen.runner(job)
        if isinstance(runner, LinearizedRunner):
            seconds, reason = _linearized(job, runner)
            reasons.append(reason)
        elif seconds == float("inf"):
            seconds, reason = _timed(job, runner)
            reasons.append(reason)
        if refine:
            share = _hidden_share(job, runner)
            seconds *= 1 + share
            if share:
                reasons.append(f"about {share:.0%} of the rows are computed again in float64")
    result = job.n * job.m * job.k * torch.finfo(job.bound.dtype).bits // 8
    return Estimate(in_words(chosen), seconds, result + min(runner.bytes, job.memory), "; ".join(reasons))


def _hidden_share(job: Job, runner: Runner) -> float:
    """Of the first rows, how many are below the noise of the model's precision."""
    if job.bound.dtype == torch.float64:
        return 0.0
    few = job.part(min(job.n, FEW_ROWS))
    noise = Noise.measure(few, runner)
    rows = collect(few, runner, Rows.empty(few), lambda count: None)
    return float((~clear_rows(few, runner, noise, rows)).double().mean())


def _timed(job: Job, runner: Runner) -> tuple[float, str]:
    """A small chunk and a larger one: what a chunk takes whatever its size, and what each of its rows adds."""
    largest = min(runner.chunk, job.n)
    few, many = min(largest, FEW_ROWS), min(largest, MORE_ROWS)
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
    few = take(job.target_inputs, slice(0, FEW_ROWS))
    for _ in range(2):
        began = _now(job)
        factors = with_coverage(job.bound, few, lambda coverage: jacobian_factors(job.bound, coverage, few)[1])
        passes = _now(job) - began
    began = _now(job)
    inner(factors, factors)
    products = _now(job) - began
    tried = min(FEW_ROWS, job.m)
    blocks = -(-job.m // runner.block)
    examples = job.m if job.targets_are_sources and blocks == 1 else job.m + job.n * job.batch * blocks
    pairs = job.n * job.m / job.k
    return passes * examples / tried + products * pairs / tried**2, f"timed on {tried} of {examples} backward passes"


def _now(job: Job) -> float:
    return now(job.bound.device)


def bytes_in_words(count: float) -> str:
    """A size.

    >>> bytes_in_words(61e6)
    '61 MB'
    """
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = 0
    while count >= 1000 and power < len(units) - 1:
        count, power = count / 1000, power + 1
    return f"{rounded(count)} {units[power]}"
