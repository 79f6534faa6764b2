"""When to probe: which due steps a budget pays for, and a plan for a whole run whose length is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

from local_elasticity.checks import check_count
from local_elasticity.statistics.class_pairs import sampled_rows
from local_elasticity.training.budget import Budget
from local_elasticity.training.distributed import alone
from local_elasticity.training.failures import tell
from local_elasticity.training.probe_runner import ProbeRunner
from local_elasticity.training.schedule import OF_STEPS_ALONE, Every, Listed, LogSpaced, PerEpoch, Schedule

LEAST_PROBES = 8
"""Probes that a run should have: sources are left out before there are fewer."""

MOST_PROBES = 200
"""The most probes without a schedule; more add little information and fill the memory."""

SOURCES_OF_A_CLASS = 2
"""Sources of a class that are always kept: a class needs two for a pair."""

TIMED_STEPS = 3
"""Steps of training whose time is known before anything is planned."""

SETTLED = 4
"""Probes after which the number of sources stays. The first pays for choosing an engine, so that fewer may be planned
after it than fit."""


@dataclass(frozen=True)
class ProbePlan:
    """Every `stride`-th due step is probed, with this number of `sources`; `probes` is the total number of probes."""

    stride: int
    sources: int
    probes: int


def planned(
    *, price: float, allowance: float, due: int, taken: int, measured: int, fewest: int, most: float = math.inf
) -> ProbePlan:
    """The plan for what is left of a run, where a probe of `measured` sources took `price` seconds.

    Sources are left out where fewer than eight probes would fit otherwise. Of more due steps than fit, every second,
    third, … is taken. If twice as many probes would fit as are needed, the number of sources is doubled again: the cost
    of a probe grows at most in proportion to its sources.

    Args:
        price: seconds of a probe.
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
    """Plans the probes of a run of `total` steps, again after every probe, from what steps and probes have taken: the
    mean time of a step, and the median time of the probes of as many sources as the last one.

    `plan` is None until three steps of training have been timed after the first probe.
    """

    def __init__(self, total: int, schedule: Schedule, classes: Sequence[Any], *, asked: bool, samples: bool) -> None:
        self.total, self.schedule, self.asked = total, schedule, asked
        self.sources = len(classes)
        kinds = len(set(map(str, classes)))
        self.fewest = min(self.sources, SOURCES_OF_A_CLASS * kinds) if samples else self.sources
        self.plan: ProbePlan | None = None
        self._began: tuple[int, float] | None = None
        self.price = 0.0
        """Seconds of a probe of as many sources as the last one: the median of those so far."""
        self._prices: dict[int, list[float]] = {}
        self._planned_at = self._priced_at = -1

    def look(self, step: int, budget: Budget, *, taken: int, last: int, measured: int) -> bool:
        """Make a new plan if a probe was taken since the last plan; returns whether it did. `last` is the step of the
        last probe, which was of `measured` sources."""
        if self._began is None:
            self._began = step, budget.training_seconds
        self._read_price(budget, last, measured)
        seen = step - self._began[0]
        if not taken or seen < TIMED_STEPS or last == self._planned_at or not budget.last_seconds:
            return False
        each = (budget.training_seconds - self._began[1]) / seen
        whole = budget.training_seconds + each * max(self.total - step, 0)
        plan = planned(
            price=self.price,
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

    def _read_price(self, budget: Budget, last: int, measured: int) -> None:
        """Add the last probe to the costs of its number of sources. Of two costs the median is the smaller: the first
        probe pays for choosing an engine."""
        if last != self._priced_at and budget.last_seconds:
            self._priced_at = last
            prices = self._prices.setdefault(measured, [])
            prices.append(budget.last_seconds)
            self.price = median_low(prices)

    def takes(self, step: int, last: int) -> bool:
        """Whether the plan has a probe at this due step."""
        return self.plan is not None and (count_due(self.schedule, last + 1, step + 1) or 0) >= self.plan.stride


class Pace:
    """Which of the due steps are probed: as planned where the length of the run is known, by what was spent so far
    where not. `asked` says whether the user gave a schedule."""

    def __init__(self, schedule: Schedule, runner: ProbeRunner, *, asked: bool) -> None:
        self.schedule, self.runner, self.asked = schedule, runner, asked
        self.planner: Planner | None = None
        self._few_told = False

    def plan_for(self, total_steps: int | None) -> None:
        """Plan a run of known length under a budget. A schedule that looks at more than the step is not planned.
        Several processes measure all sources.
        """
        if total_steps is None:
            return
        check_count("total_steps", total_steps)
        if self.runner.budget.share is not None and isinstance(self.schedule, OF_STEPS_ALONE):
            classes = self.runner.history.source_classes
            self.planner = Planner(total_steps, self.schedule, classes, asked=self.asked, samples=alone())

    def due(self, step: int) -> bool:
        """Whether this step is due and the budget has a probe for it."""
        return bool(self.schedule.due(step)) and self._fits(step)

    def _fits(self, step: int) -> bool:
        runner, budget, planner = self.runner, self.runner.budget, self.planner
        if planner is None or runner.busy:
            return budget.affords(step, busy=runner.busy, asked=self.asked)
        last, measured = runner.last_step, runner.prober.n if runner.rows is None else len(runner.rows)
        if planner.look(step, budget, taken=len(runner.history), last=last, measured=measured):
            self._follow(step, planner, measured)
        if planner.plan is None:
            return budget.affords(step, asked=self.asked)
        if planner.takes(step, last):
            return True
        budget.leave_out(step, asked=self.asked)
        return False

    def _follow(self, step: int, planner: Planner, measured: int) -> None:
        """Measure as many sources as a new plan says, and say so, and where the plan has too few probes."""
        plan, runner = planner.plan, self.runner
        assert plan is not None
        if plan.sources != measured:
            kept = plan.sources < planner.sources
            runner.rows = sampled_rows(runner.history.source_classes, plan.sources) if kept else None
            words = f"{plan.sources} of the {planner.sources} sources are measured"
            runner.history.note(step, words)
            if kept:
                tell(
                    f"monitor: from step {step} on {words}, balanced by class as far as possible, so that probes fit "
                    f"into {self._allowance(planner.total)}. A larger budget= or fewer targets keep all"
                )
        few = plan.probes < LEAST_PROBES and count_due(self.schedule, 0, planner.total) != plan.probes
        if few and not self._few_told:
            self._few_told = True
            tell(
                f"monitor: {_probes(plan.probes)} fit into {self._allowance(planner.total)}, fewer than "
                f"{LEAST_PROBES}; one takes {planner.price:.2g} s. Pass a larger budget=, fewer targets, "
                "or budget=None"
            )

    def tell_if_few(self, taken: int) -> None:
        """Say once at the end that the budget left fewer than eight probes, and what to do."""
        budget = self.runner.budget
        if self._few_told or not 0 < taken < LEAST_PROBES or not budget.refused or budget.share is None:
            return
        self._few_told = True
        tell(
            f"monitor: {_probes(taken)} fitted into {self._allowance()} ({budget.training_seconds:.2g} s), fewer than "
            f"{LEAST_PROBES}; one takes {budget.last_seconds:.2g} s. Pass total_steps= to have sources left out "
            "instead, fewer sources or targets, a larger budget=, or budget=None"
        )

    def _allowance(self, total: int | None = None) -> str:
        what = "the training time" if total is None else f"the time of {total} steps"
        return f"{100 * (self.runner.budget.share or 0):.3g} % of {what}"


def _probes(count: int) -> str:
    return f"{count} probe{'s' * (count != 1)}"


def count_due(schedule: Schedule, start: int, stop: int) -> int | None:
    """How many steps of [start, stop) are due; None if the schedule would have to be asked for each step.

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
