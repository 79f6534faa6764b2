"""A plan for the probes of a whole run: how many its budget pays for, of how many sources, and at which due steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from local_elasticity.training.budget import Budget
from local_elasticity.training.schedule import Every, Listed, LogSpaced, PerEpoch, Schedule

LEAST_PROBES = 8
"""Probes that a run should have: sources are left out before there are fewer."""

MOST_PROBES = 200
"""Probes that are taken where no schedule was asked for; more tell nothing new and fill the memory."""

SOURCES_OF_A_CLASS = 2
"""Sources of a class that are always kept: a class needs two for a pair."""

TIMED_STEPS = 3
"""Steps of training whose time is known before anything is planned."""

SETTLED = 4
"""Probes after which the number of sources stays. The first pays for choosing an engine, so that fewer may be planned
after it than fit."""


@dataclass(frozen=True)
class ProbePlan:
    """Every `stride`-th due step is probed, at so many `sources`; `probes` is how many there will be in all."""

    stride: int
    sources: int
    probes: int


def planned(
    *, price: float, allowance: float, due: int, taken: int, measured: int, fewest: int, most: float = math.inf
) -> ProbePlan:
    """The plan for what is left of a run, where a probe of `measured` sources took `price` seconds.

    Sources are left out where fewer than eight probes would fit otherwise. Of more due steps than fit, every second,
    third, … is taken. Sources that were left out come back, twice as many at a time, where twice as many probes would
    fit as are wanted: a probe costs at most in proportion to its sources.

    Args:
        price: seconds of the last probe.
        allowance: seconds that are left of the budget.
        due: steps of the schedule that are left.
        taken: probes so far.
        measured, fewest: the sources of the last probe, and the least number that is measured.
        most: the most probes.

    >>> planned(price=1, allowance=20, due=100, taken=9, measured=100, fewest=6)
    ProbePlan(stride=5, sources=100, probes=29)
    >>> planned(price=1, allowance=2, due=100, taken=1, measured=100, fewest=6)
    ProbePlan(stride=14, sources=28, probes=8)
    >>> planned(price=0.1, allowance=2, due=100, taken=2, measured=28, fewest=6)
    ProbePlan(stride=10, sources=56, probes=12)
    """
    fit = max(allowance, 0.0) / max(price, 1e-9)
    wanted = min(max(LEAST_PROBES - taken, 1), due)
    kept = measured
    if taken < SETTLED and fit < wanted:
        kept = min(measured, max(fewest, math.floor(measured * fit / wanted)))
    elif taken < SETTLED and fit >= 2 * wanted:
        kept = 2 * measured
    fit = min(fit * measured / kept, due, max(most - taken, 1))
    if fit < 1:
        return ProbePlan(due + 1, kept, taken)
    stride = math.ceil(due / fit)
    if due // stride < min(wanted, math.floor(fit)):
        stride = due // math.floor(fit)
    return ProbePlan(stride, kept, taken + due // stride)


class Planner:
    """Plans the probes of a run of `total` steps, again after every probe, from what steps and probes have taken.

    `plan` is None until three steps of training have been timed after the first probe.
    """

    def __init__(self, total: int, schedule: Schedule, classes: Sequence[Any], *, asked: bool, samples: bool) -> None:
        self.total, self.schedule, self.asked = total, schedule, asked
        self.sources = len(classes)
        kinds = len(set(map(str, classes)))
        self.fewest = min(self.sources, SOURCES_OF_A_CLASS * kinds) if samples else self.sources
        self.plan: ProbePlan | None = None
        self._began: tuple[int, float] | None = None
        self._planned_at = -1

    def look(self, step: int, budget: Budget, *, taken: int, last: int, measured: int) -> bool:
        """Plan where a probe was taken since the last plan; whether there is a new one. `last` is the step of the last
        probe, which was of `measured` sources."""
        if self._began is None:
            self._began = step, budget.training_seconds
        seen = step - self._began[0]
        if not taken or seen < TIMED_STEPS or last == self._planned_at or not budget.last_seconds:
            return False
        each = (budget.training_seconds - self._began[1]) / seen
        whole = budget.training_seconds + each * max(self.total - step, 0)
        plan = planned(
            price=budget.last_seconds,
            allowance=(budget.share or 0.0) * whole - budget.probing_seconds,
            due=count_due(self.schedule, last + 1, self.total) or 0,
            taken=taken,
            measured=measured,
            fewest=self.fewest,
            most=math.inf if self.asked else MOST_PROBES,
        )
        self.plan = replace(plan, sources=min(plan.sources, self.sources))
        self._planned_at = last
        return True

    def takes(self, step: int, last: int) -> bool:
        """Whether the plan has a probe at this due step."""
        return self.plan is not None and (count_due(self.schedule, last + 1, step + 1) or 0) >= self.plan.stride


def count_due(schedule: Schedule, start: int, stop: int) -> int | None:
    """How many steps of [start, stop) are due; None where only asking for each would tell.

    >>> count_due(Every(10), 1, 101), count_due(LogSpaced(3), 0, 120), count_due(PerEpoch(2, 9), 0, 20)
    (10, 8, 5)
    """
    if stop <= start:
        return 0
    if isinstance(schedule, Every):
        return (stop - 1) // schedule.n - (start - 1) // schedule.n
    if isinstance(schedule, Listed):
        return sum(start <= step < stop for step in schedule.steps)
    if isinstance(schedule, LogSpaced):
        places = range(math.ceil(schedule.per_decade * math.log10(max(stop, 2))) + 1)
        steps = {0, *(round(10 ** (place / schedule.per_decade)) for place in places)}
        return sum(start <= step < stop for step in steps)
    if isinstance(schedule, PerEpoch):
        epoch = schedule.steps_per_epoch
        within = [i * epoch // schedule.probes for i in range(schedule.probes)]
        return sum((stop - 1 - at) // epoch - (start - 1 - at) // epoch for at in within)
    return None


def sampled_rows(classes: Sequence[Any], count: int) -> np.ndarray:
    """The places of `count` examples, as even by class as they come, in order. Those of a smaller count are among them.

    >>> sampled_rows(["a", "a", "a", "b", "b", "c"], 4)
    array([0, 1, 3, 5])
    """
    seen: dict[str, int] = {}
    keys = []
    for place, one in enumerate(map(str, classes)):
        seen[one] = seen.get(one, -1) + 1
        keys.append((seen[one], place))
    return np.sort(np.array([place for _, place in sorted(keys)[:count]], dtype=int))
