"""A cost model fitted to small measurements: what a response of n sources and m targets will take.

    seconds(n, m) = start + a n + b m + c n m

a is a source's gradient, b a target's forward pass before the step, c one pair. Work in blocks of side s repeats the
first two for every block, so that c wins as soon as s is a few hundred. Blocks are independent: W workers take 1/W of
the time for as long as the driver, which writes them, keeps up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from local_elasticity.engine.choose import choose, name_of
from local_elasticity.engine.inputs import count, read_sources, take
from local_elasticity.engine.job import Engine, Job
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.progress import now
from local_elasticity.engine.respond import resolve_engine, response_of
from local_elasticity.engine.update import DEFAULT_UPDATE, Update

SIZES = ((1, 16), (1, 128), (8, 16), (8, 128), (16, 64), (32, 32), (32, 128), (64, 256), (256, 256), (256, 1024))
"""(sources, targets) that are timed, as long as there are that many and time is left."""

SECONDS_TO_MEASURE = 20.0
FEWEST = 4
"""Sizes that are timed however long they take, since the cost has as many numbers."""

RACED = 256
"""Targets that engines race on: the fewest at which `auto` tries all of its ways."""

DRIVER_BYTES_A_SECOND = 200e6
"""What the driver is assumed to receive and write; not measured."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a response; fitted by `fit` or `measure`.

    >>> Cost.fit([(1, 1, 0.5), (10, 1, 1.4), (1, 10, 0.5), (10, 10, 1.4)])
    Cost(start=0.4, per_source=0.1, per_target=0.0, per_pair=0.0, engine='')
    """

    start: float
    per_source: float
    per_target: float
    per_pair: float
    engine: str = ""

    @classmethod
    def fit(cls, measured: Sequence[tuple[int, int, float]]) -> Cost:
        """From (n, m, seconds), none of the four below zero, each measurement counted by its relative error."""
        from scipy.optimize import nnls

        rows = np.array([[1, n, m, n * m] for n, m, _ in measured], dtype=float)
        taken = np.array([seconds for *_, seconds in measured])
        found = nnls(rows / taken[:, None], np.ones(len(taken)))[0]
        start, per_source, per_target, per_pair = (float(f"{value:.4g}") for value in found)
        return cls(start, per_source, per_target, per_pair)

    @classmethod
    def measure(
        cls, problem: Problem, sources: Any, *, update: Update = DEFAULT_UPDATE, engine: str | Engine = "auto"
    ) -> Cost:
        """Time small responses among these sources, and fit: as many as fit into half a minute, at least four.

        >>> import torch, local_elasticity as le
        >>> problem = le.Problem.of(torch.nn.Linear(4, 1), "mse")
        >>> Cost.measure(problem, (torch.randn(128, 4), torch.randn(128))).seconds(1000, 1000) < 60
        True
        """
        began = time.monotonic()
        with problem.bound() as bound:
            inputs, labels = read_sources(sources, bound.device, bound.dtype)
            asked = resolve_engine(engine, False)
            few = take(inputs, slice(0, RACED))
            chosen = asked or choose(Job.read(bound, (inputs, labels), (few, None), update)).engine
        measured: list[tuple[int, int, float]] = []
        for n, m in SIZES:
            left = SECONDS_TO_MEASURE - (time.monotonic() - began)
            too_long = len(measured) >= FEWEST and 2 * cls.fit(measured).seconds(n, m) > left
            if max(n, m) > count(inputs) or too_long:
                continue
            pair, targets = (take(inputs, slice(0, n)), labels[:n]), take(inputs, slice(0, m))
            took = min(_timed(problem, pair, targets, update, chosen, refine=asked is None) for _ in range(2))
            measured.append((n, m, took))
        if len(measured) < FEWEST:
            raise ValueError(f"sources: {count(inputs)} are too few to fit a cost to; give at least 128")
        return replace(cls.fit(measured), engine=name_of(chosen))

    def seconds(self, n: float, m: float) -> float:
        """On what it was measured on."""
        return self.start + self.per_source * n + self.per_target * m + self.per_pair * n * m

    def in_blocks(self, n: int, m: int, *, side: int = 2048, workers: int = 1, bytes_a_value: int = 4) -> float:
        """All n·m pairs in blocks of `side`, on this many workers like the measured one, written by one driver.

        >>> Cost(0.0, 0.0, 0.0, 1e-6).in_blocks(20_000, 20_000, workers=4)
        100.0
        """
        rows, columns = math.ceil(n / side), math.ceil(m / side)
        work = rows * columns * self.start + self.per_source * n * columns
        work += self.per_target * m * rows + self.per_pair * n * m
        rounds = math.ceil(rows * columns / workers) / (rows * columns)
        return max(work * rounds, n * m * bytes_a_value / DRIVER_BYTES_A_SECOND)


def _timed(problem: Problem, pair: Any, targets: Any, update: Update, engine: Engine, *, refine: bool) -> float:
    """With the rows that are computed again in float64."""
    device = pair[1].device
    began = now(device)
    response_of(
        problem, pair, (targets, None), update=update, engine=engine, refine=refine, progress=False, nonlinearity=False
    )
    return now(device) - began
