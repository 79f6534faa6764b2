"""The plan: decisions that a stored similarity is computed by, made once and written down with it."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from local_elasticity.engine.auto import Auto, AutoRunner
from local_elasticity.engine.job import Job, Runner
from local_elasticity.engine.memory import budget_of
from local_elasticity.engine.settled import Settled
from local_elasticity.measurement import Measurement
from local_elasticity.scale.workers import current_workers, threads_set
from local_elasticity.store.sizes import whole_number

LARGEST_SIDE, SMALLEST_SIDE = 2048, 32
SECONDS_A_BLOCK = 30.0
"""What an interruption may cost: blocks are made small enough to be done in about this time."""

MOST_THREADS = 4096
"""Threads that a recorded plan may ask for."""

NUMBERS_A_PAIR = 8
"""How many arrays of [rows, columns, outputs] a block takes at a time."""


@dataclass(frozen=True)
class Plan:
    """How blocks are computed: their side, the way that `auto` settled on, the memory and threads it works with."""

    side: int
    settled: Settled | None
    memory: int
    threads: int
    notes: tuple[str, ...] = ()

    @classmethod
    def make(cls, measurement: Measurement, side: int | None, memory: int | None) -> Plan:
        """Decide for this measurement; `side` and `memory` as the user asked for, or None."""
        memory = memory or 1 << int(math.log2(budget_of(None, measurement.sources[1].device)))
        plan = cls(side or LARGEST_SIDE, None, memory, current_workers().threads or torch.get_num_threads())
        if not measurement.takes_steps:
            return plan
        with threads_set(plan.threads):
            return plan._settle(measurement, side)

    @classmethod
    def read(cls, record: dict[str, Any], side: int) -> Plan:
        """As it was written down for blocks of this side; a ValueError where its numbers cannot be."""
        settled = record["settled"]
        plan = cls(**{**record, "settled": settled and Settled(**settled), "notes": tuple(record["notes"])})
        if plan.side != side or not whole_number(plan.memory, 1) or not whole_number(plan.threads, 1):
            raise ValueError(f"side {plan.side!r}, memory {plan.memory!r}, threads {plan.threads!r}")
        if plan.threads > MOST_THREADS:
            raise ValueError(f"{plan.threads:,} threads")
        return plan

    def as_record(self) -> dict[str, Any]:
        return asdict(self)

    def applied(self, measurement: Measurement) -> Measurement:
        """The measurement, done by this plan."""
        engine = Auto(self.settled) if self.settled else measurement.engine
        return replace(measurement, engine=engine, memory=self.memory)

    def _settle(self, measurement: Measurement, side: int | None) -> Plan:
        """Race the engines on a block's worth of work where `auto` is asked for, and size blocks by the outcome."""
        rows, columns = slice(0, min(self.side, measurement.n)), slice(0, min(self.side, measurement.m))
        part = measurement.part(rows, columns)
        with part.problem.moment() as moment:
            batches = part.source_batch_size
            targets, limits = part.pair_of_targets, {"source_batch_size": batches, "memory": self.memory}
            job = Job.read(moment, part.sources, targets, part.update, **limits)
            runner = part.engine.runner(job)
            plan, seconds = self, math.inf
            if isinstance(runner, AutoRunner):
                _race(job, runner)
                plan = replace(self, settled=runner.settled, notes=tuple(runner.notes))
                seconds = runner.seconds / job.m
            if side is not None:
                return plan
            if math.isinf(seconds):
                seconds = _seconds_a_pair(job, runner)
            outputs = runner.target_before[0].numel() * runner.target_before.element_size()
        return replace(plan, side=_side(seconds, self.memory / (NUMBERS_A_PAIR * outputs)))


def _race(job: Job, runner: AutoRunner) -> None:
    done = 0
    while runner.trials and done < job.n:
        stop = min(done + runner.chunk, job.n)
        runner.rows(done, stop)
        done = stop


def _seconds_a_pair(job: Job, runner: Runner) -> float:
    """From a few rows, the second time that they are computed."""
    rows = min(job.n, runner.chunk, 8)
    float(runner.rows(0, rows).target_change.sum())  # a number, so that a GPU has finished
    began = time.perf_counter()
    float(runner.rows(0, rows).target_change.sum())
    return (time.perf_counter() - began) / (rows * job.m)


def _side(seconds_a_pair: float, pairs_in_memory: float) -> int:
    """The largest power of two that neither time nor memory forbids."""
    pairs = min(SECONDS_A_BLOCK / max(seconds_a_pair, 1e-12), pairs_in_memory, LARGEST_SIDE**2)
    return max(SMALLEST_SIDE, 1 << int(math.log2(max(1.0, math.sqrt(pairs)))))
