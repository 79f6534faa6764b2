"""Rows: what one update on each source did, collected chunk by chunk, with less memory whenever it runs out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from local_elasticity.engine.memory import is_out_of_memory, may_be_passed_over
from local_elasticity.shapes import Float

if TYPE_CHECKING:
    from local_elasticity.engine.job import Job, Runner

logger = logging.getLogger("local_elasticity")


PARTS = ("source_change", "target_change", "loss_gradient", "realized", "subtracted")
"""The tensors of `Rows`, in their order."""

SMALLER_CHUNKS = 2
"""How often chunks are halved after an error other than a lack of memory."""


@dataclass
class Rows:
    """What one update on each of c sources did; the first `done` of them are known, the others NaN.

    `realized` is the part of the intended first-order decrease of the loss that survived when the new weights were
    rounded: ⟨g, fl(w + Δ) − w⟩ / ⟨g, Δ⟩. It is 1 if steps are far larger than the spacing of floating-point numbers.
    `subtracted` is 1 where changes are differences of two predictions, and so carry the rounding of both, else 0.
    """

    source_change: Float[Tensor, "c batch k"]
    target_change: Float[Tensor, "c m k"]
    loss_gradient: Float[Tensor, "c batch k"]
    realized: Float[Tensor, " c"]
    subtracted: Float[Tensor, " c"]
    done: int

    @classmethod
    def of(
        cls,
        source_change: Float[Tensor, "c batch k"],
        target_change: Float[Tensor, "c m k"],
        loss_gradient: Float[Tensor, "c batch k"],
        realized: Float[Tensor, " c"] | None = None,
        *,
        subtracted: bool,
    ) -> Rows:
        """A chunk that a runner has computed."""
        realized = torch.ones_like(loss_gradient[:, 0, 0]) if realized is None else realized
        each = torch.full_like(realized, float(subtracted))
        return cls(source_change, target_change, loss_gradient, realized, each, len(realized))

    @classmethod
    def empty(cls, job: Job) -> Rows:
        """All rows of a job, none of them known."""

        def unknown(*shape: int) -> Tensor:
            return torch.full(shape, torch.nan, dtype=job.bound.dtype, device=job.bound.device)

        own, each = unknown(job.n, job.batch, job.k), unknown(job.n)
        return cls(own, unknown(job.n, job.m, job.k), own.clone(), each, each.clone(), 0)

    def first(self) -> Rows:
        """The rows that are known."""
        return replace(self, **{name: getattr(self, name)[: self.done] for name in PARTS})

    def put(self, rows: Rows) -> None:
        """Add the next rows."""
        at = slice(self.done, self.done + rows.done)
        for name in PARTS:
            getattr(self, name)[at] = getattr(rows, name)
        self.done = at.stop


@dataclass
class Counted:
    """A placeholder for rows that are computed only to be timed."""

    done: int = 0

    def put(self, rows: Rows) -> None:
        self.done += rows.done


AnyRows = TypeVar("AnyRows", bound=Rows | Counted)


def collect(
    job: Job,
    runner: Runner,
    rows: AnyRows,
    advance: Callable[[int], None],
    *,
    chunk: int | None = None,
    upto: int | None = None,
    enough: Callable[[AnyRows], bool] | None = None,
) -> AnyRows:
    """Run all rows that are not known yet, those before `upto`, or until `enough` returns true; `advance` is called
    with the number of finished rows. A chunk that fails, as libraries do for some sizes, is tried again as smaller
    chunks; if these fail too, the first cause is raised."""
    end, causes = job.n if upto is None else upto, list[RuntimeError]()
    while rows.done < end and not (enough and enough(rows)):
        stop = min(rows.done + min(runner.chunk, chunk or runner.chunk), end)
        try:
            found = runner.rows(rows.done, stop)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                _use_less_memory(job, runner, error)
                continue
            if not isinstance(error, RuntimeError) or not may_be_passed_over(error):
                raise
            causes.append(error)
            if len(causes) > SMALLER_CHUNKS or stop - rows.done == 1:
                raise causes[0] from None
            logger.info("a chunk of %d sources failed (%s): trying smaller chunks", stop - rows.done, error)
            chunk = runner.chunk = (stop - rows.done) // 2
            continue
        advance(stop - rows.done)
        rows.put(found)
    return rows


def own_change(target_change: Float[Tensor, "c m k"], start: int) -> Float[Tensor, "c 1 k"]:
    """The sources' own changes, where the targets are the sources and the first row is that of source `start`."""
    rows = torch.arange(len(target_change), device=target_change.device)
    return target_change[rows, rows + start][:, None]


def _use_less_memory(job: Job, runner: Runner, error: BaseException) -> None:
    if job.bound.device.type == "cuda":
        torch.cuda.empty_cache()
    if not runner.shrink():
        raise MemoryError(
            "one source and one target at a time still do not fit in memory; step fewer parameters (params=) or use a "
            "larger machine"
        ) from error
    logger.info("out of memory: continuing with smaller chunks")
