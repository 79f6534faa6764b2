"""The table that a runner fills row by row, with less memory whenever it runs out, and the response made of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from local_elasticity.engine.job import Job, Rows, Runner
from local_elasticity.engine.memory import is_out_of_memory
from local_elasticity.engine.noise import Noise
from local_elasticity.engine.progress import Progress
from local_elasticity.engine.response import Response

logger = logging.getLogger("local_elasticity")


@dataclass
class Table:
    """The rows so far; those not yet done are NaN."""

    source_change: Tensor
    target_change: Tensor
    loss_gradient: Tensor
    realized: Tensor
    subtracted: Tensor
    done: int = 0

    @classmethod
    def of(cls, job: Job, k: int) -> Table:
        def unknown(*shape: int) -> Tensor:
            return torch.full(shape, torch.nan, dtype=job.moment.dtype, device=job.moment.device)

        return cls(
            unknown(job.n, job.batch, k),
            unknown(job.n, job.m, k),
            unknown(job.n, job.batch, k),
            unknown(job.n),
            unknown(job.n),
        )

    def rows_done(self) -> Table:
        """The part that is done."""
        done = slice(0, self.done)
        return Table(
            self.source_change[done],
            self.target_change[done],
            self.loss_gradient[done],
            self.realized[done],
            self.subtracted[done],
            self.done,
        )

    def put(self, rows: Rows) -> None:
        at = slice(self.done, self.done + len(rows.realized))
        self.source_change[at] = rows.source_change
        self.target_change[at] = rows.target_change
        self.loss_gradient[at] = rows.loss_gradient
        self.realized[at] = rows.realized
        self.subtracted[at] = float(rows.subtracted)
        self.done = at.stop


def fill(job: Job, runner: Runner, bar: Progress, enough: Callable[[Table], bool] | None = None) -> Table:
    """Run all rows, or as many as it takes until `enough` says so."""
    table = Table.of(job, runner.target_before.shape[1])
    while table.done < job.n and not (enough and enough(table)):
        stop = min(table.done + runner.chunk, job.n)
        try:
            rows = runner.rows(table.done, stop)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            _make_room(job, runner, error)
            continue
        bar.advance(stop - table.done)
        table.put(rows)
    return table


def as_response(job: Job, table: Table, noise: Noise, runner: Runner, name: str, notes: tuple[str, ...]) -> Response:
    """The labelled whole: predictions, changes, noise and how they came about."""
    dtype = torch.float64 if job.moment.dtype == torch.float64 else torch.float32

    def shaped(source: Tensor) -> Tensor:
        return (source if job.minibatches else source.flatten(0, 1)).to(dtype)

    return Response(
        source_before=shaped(noise.source_before),
        target_before=runner.target_before.to(dtype),
        source_change=shaped(table.source_change),
        target_change=table.target_change.to(dtype),
        loss_gradient=shaped(table.loss_gradient),
        step_size=torch.full((job.n,), job.update.step_size, dtype=dtype, device=job.moment.device),
        source_noise=shaped(noise.of_rows(table)),
        target_noise=noise.target.to(dtype),
        noise_scale=table.subtracted.to(dtype),
        kind=job.kind,
        update=job.update,
        engine=name,
        policy=job.moment.problem.policy,
        targets_are_sources=job.targets_are_sources,
        notes=notes,
    )


def _make_room(job: Job, runner: Runner, error: BaseException) -> None:
    if job.moment.device.type == "cuda":
        torch.cuda.empty_cache()
    if not runner.shrink():
        raise MemoryError(
            "one source and one target at a time still do not fit in memory; step fewer parameters (params=) or use a "
            "larger machine"
        ) from error
    logger.info("out of memory: going on with smaller chunks")
