"""Climbing: rows that rounding hides in the model's precision are computed again in float64, and those that it hides
there too by differences, which nothing is subtracted in."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
from torch import Tensor

from local_elasticity.engine.auto import FAILURES, AutoRunner, StaleChoiceError
from local_elasticity.engine.guard import interruption
from local_elasticity.engine.inputs import take
from local_elasticity.engine.job import Job, Runner
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.noise import Noise, resolved_rows
from local_elasticity.engine.progress import Progress
from local_elasticity.engine.response import Response
from local_elasticity.engine.structured import differences_runner
from local_elasticity.engine.table import Table, as_response, fill

logger = logging.getLogger("local_elasticity")

SCOUTS = 8
"""Where none of so many first rows is resolved, the others are not tried in the low precision."""


def respond_and_climb(job: Job, runner: AutoRunner, bar: Progress) -> Response:
    """Exact rows by the fastest engine; those whose change is not clear of the noise again in float64."""
    try:
        return _respond_and_climb(job, runner, bar)
    except StaleChoiceError as error:
        bar.done = 0
        again = AutoRunner(job, anew=True)
        again.notes.append(f"auto: {runner.name}, as chosen before, cannot take the model as it is now ({error})")
        return _respond_and_climb(job, again, bar)


def _respond_and_climb(job: Job, runner: AutoRunner, bar: Progress) -> Response:
    noise = Noise.measure(job, runner)
    in_float64 = job.moment.dtype == torch.float64

    def hopeless(table: Table) -> bool:
        return SCOUTS <= table.done < 2 * SCOUTS <= job.n and not clear_rows(job, runner, noise, table).any()

    table = fill(job, runner, bar, enough=None if in_float64 else hopeless)
    hidden = torch.ones(job.n, dtype=torch.bool, device=job.moment.device)
    hidden[: table.done] = ~clear_rows(job, runner, noise, table)
    response = as_response(job, table, noise, runner, runner.name, tuple(runner.notes))
    if not hidden.any():
        return response
    rows = torch.nonzero(hidden).flatten()
    climbed = _by_differences if in_float64 else _again_in_float64
    return climbed(job, runner, noise, response, rows, bar)


def clear_rows(job: Job, runner: Runner, noise: Noise, table: Table) -> Tensor:
    """Which of the rows so far are clear of the noise."""
    rows = table.rows_done()
    before, at_targets = noise.source_before[: table.done], noise.target * rows.subtracted.max()
    return resolved_rows(job.kind, before, rows.source_change, noise.of_rows(rows), runner.target_before, at_targets)


def _again_in_float64(
    job: Job, runner: AutoRunner, noise: Noise, response: Response, rows: Tensor, bar: Progress
) -> Response:
    low = str(job.moment.dtype).removeprefix("torch.")
    try:
        with job.moment.problem.to(torch.float64).moment() as moment:
            higher = job.again(moment, rows)
            inside = _rounding_inside(higher)
            bar.total += len(rows) - (bar.total - bar.done)
            again, finer = runner.again(higher), noise.again(rows, torch.float64, inside)
            table = fill(higher, again, bar)
            better = as_response(higher, table, finer, again, runner.name, ())
            hidden = torch.nonzero(~clear_rows(higher, again, finer, table)).flatten()
            better = _by_differences(higher, again, finer, better, hidden, bar)
    except (RuntimeError, TypeError) as error:
        if interruption(error):
            raise
        return _low_after_all(job, runner, noise, f"float64 is not possible here ({error})", bar)
    note = f"{len(rows)} of {job.n} rows are below the noise of {low} and were computed again in float64"
    if finer.computed_in:
        note += ", but the forward pass itself computes in half precision"
    logger.info(note)
    return _merged(response, better, rows, note)


def _rounding_inside(job: Job) -> float:
    """The unit of the coarsest numbers that the network computes with in this precision; raises a RuntimeError where it
    cannot be run in it."""
    replica = job.moment.replica
    replica.effects = None if replica.effects is None else replace(replica.effects, coarsest=0.0)
    try:
        job.moment.watched(take(job.target_inputs, slice(0, 1)))
    except Exception as error:  # whatever a forward pass raises that was not made for float64
        if not may_be_passed_over(error):
            raise
        raise RuntimeError(str(error)) from error
    assert replica.effects is not None
    return replica.effects.coarsest


def _low_after_all(job: Job, runner: AutoRunner, noise: Noise, why: str, bar: Progress) -> Response:
    """All rows in the model's own precision, of which some stay hidden."""
    bar.done, bar.total = 0, job.n
    table = fill(job, runner, bar)
    hidden = int((~clear_rows(job, runner, noise, table)).sum())
    note = f"{hidden} rows are below the noise of {str(job.moment.dtype).removeprefix('torch.')}, and {why}"
    logger.warning(note)
    response = as_response(job, table, noise, runner, runner.name, tuple(runner.notes))
    return replace(response, notes=(*response.notes, note))


def _by_differences(
    job: Job, runner: Runner, noise: Noise, response: Response, rows: Tensor, bar: Progress
) -> Response:
    """Rows that hide in the rounding of two predictions, without subtracting; unchanged where `Structured` cannot."""
    if not (runner.subtracts and len(rows)):
        return response
    few, finer = job.again(job.moment, rows), noise.again(rows, job.moment.dtype)
    bar.total += len(rows)
    try:
        differences = differences_runner(few)
        better = as_response(few, fill(few, differences, bar), finer, differences, "structured", ())
    except (*FAILURES, MemoryError) as error:
        if interruption(error):
            raise
        logger.info("%d rows stay hidden by rounding (%s)", len(rows), error)
        bar.total -= len(rows)
        return response
    note = f"{len(rows)} rows are below the noise of float64 and were computed again by differences (structured)"
    logger.info(note)
    return _merged(response, better, rows, note)


def _merged(response: Response, better: Response, rows: Tensor, note: str) -> Response:
    """The rows of `better` put in place; the tensors are still this measurement's own."""
    assert response.loss_gradient is not None
    assert better.loss_gradient is not None
    quieter = better.target_noise.norm() / response.target_noise.norm().clamp_min(torch.finfo(torch.float32).tiny)
    dtype = response.target_change.dtype
    response.target_change[rows] = better.target_change.to(dtype)
    response.source_change[rows] = better.source_change.to(dtype)
    if response.targets_are_sources:
        response.source_change[rows] = response.target_change[rows, rows]
    response.loss_gradient[rows] = better.loss_gradient.to(dtype)
    response.source_noise[rows] = better.source_noise.to(dtype)
    response.noise_scale[rows] = (quieter * better.noise_scale).to(dtype)
    return replace(response, notes=(*response.notes, note, *better.notes))
