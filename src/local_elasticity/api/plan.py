"""The plan: decisions about how a stored similarity is computed, made once and recorded with it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from local_elasticity.engine.choose import choose, name_of
from local_elasticity.engine.job import Engine, Job, Runner
from local_elasticity.engine.memory import budget_of
from local_elasticity.engine.respond import ENGINES
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
    """How blocks are computed: their side, the engine that was chosen, the memory and threads it works with."""

    side: int
    engine: Engine | None
    memory: int
    threads: int
    notes: tuple[str, ...] = ()

    @classmethod
    def make(cls, measurement: Measurement, side: int | None) -> Plan:
        """Decide for this measurement; `side` as the user asked for, or None."""
        memory = measurement.memory or 1 << int(math.log2(budget_of(None, measurement.sources[1].device)))
        plan = cls(side or LARGEST_SIDE, None, memory, current_workers().threads or torch.get_num_threads())
        if not measurement.takes_steps:
            return plan
        with threads_set(plan.threads):
            return plan._chosen(replace(measurement, memory=memory), side)

    @classmethod
    def read(cls, record: dict[str, Any], side: int) -> Plan:
        """The recorded plan for blocks of this side; a ValueError if its numbers are not valid."""
        if set(record) != {"side", "settled", "memory", "threads", "notes"}:
            raise ValueError(f"it holds {', '.join(map(str, record))}")
        plan = cls(
            record["side"], _engine(record["settled"]), record["memory"], record["threads"], tuple(record["notes"])
        )
        if plan.side != side or not whole_number(plan.memory, 1) or not whole_number(plan.threads, 1):
            raise ValueError(f"side {plan.side!r}, memory {plan.memory!r}, threads {plan.threads!r}")
        if plan.threads > MOST_THREADS:
            raise ValueError(f"{plan.threads:,} threads")
        return plan

    def as_record(self) -> dict[str, Any]:
        """Plain values. An engine is kept under the name `settled`, as version 0.1 has it."""
        settled = None if self.engine is None else {"kind": name_of(self.engine), **vars(self.engine)}
        record = {"side": self.side, "settled": settled, "memory": self.memory, "threads": self.threads}
        return {**record, "notes": list(self.notes)}

    def applied(self, measurement: Measurement) -> Measurement:
        """The measurement with the engine and memory of this plan."""
        return replace(measurement, engine=self.engine or measurement.engine, memory=self.memory)

    def _chosen(self, measurement: Measurement, side: int | None) -> Plan:
        """Choose an engine on a block's worth of work where none was asked for, and size blocks by its speed."""
        rows, columns = slice(0, min(self.side, measurement.n)), slice(0, min(self.side, measurement.m))
        part = measurement.part(rows, columns)
        with part.problem.bound() as bound:
            job = part.job(bound)
            plan, seconds, engine = self, math.inf, part.engine
            if engine is None:
                choice = choose(job)
                engine, seconds = choice.engine, choice.seconds / job.m
                plan = replace(self, engine=engine, notes=(choice.reason,))
            if side is not None:
                return plan
            runner = engine.runner(job)
            if math.isinf(seconds):
                seconds = _seconds_a_pair(job, runner)
            outputs = runner.target_before[0].numel() * runner.target_before.element_size()
        return replace(plan, side=_side(seconds, self.memory / (NUMBERS_A_PAIR * outputs)))


def _engine(record: dict[str, Any] | None) -> Engine | None:
    """An engine as it was written down, here or by version 0.1."""
    if record is None:
        return None
    kind = ENGINES["structured" if record["kind"] == "two_layer" else record["kind"]]
    return kind(**{one.name: record[one.name] for one in fields(kind) if one.name in record})


def _seconds_a_pair(job: Job, runner: Runner) -> float:
    """Seconds per pair from a few rows, timed at the second run."""
    rows = min(job.n, runner.chunk, 8)
    float(runner.rows(0, rows).target_change.sum())  # a number, so that a GPU has finished
    began = time.perf_counter()
    float(runner.rows(0, rows).target_change.sum())
    return (time.perf_counter() - began) / (rows * job.m)


def _side(seconds_a_pair: float, pairs_in_memory: float) -> int:
    """The largest power of two that neither time nor memory forbids."""
    pairs = min(SECONDS_A_BLOCK / max(seconds_a_pair, 1e-12), pairs_in_memory, LARGEST_SIDE**2)
    return max(SMALLEST_SIDE, 1 << int(math.log2(max(1.0, math.sqrt(pairs)))))
