"""Schedules: at which steps of training a probe is due. Steps are counted from 0."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from local_elasticity.checks import check_count


@runtime_checkable
class Schedule(Protocol):
    """When a probe is due."""

    def due(self, step: int) -> bool:
        """Whether a probe is due at this step."""


@dataclass(frozen=True)
class Every:
    """Every n-th step, from step 0 on.

    >>> [step for step in range(10) if Every(4).due(step)]
    [0, 4, 8]
    """

    n: int

    def __post_init__(self) -> None:
        check_count("every", self.n)

    def due(self, step: int) -> bool:
        return step % self.n == 0


@dataclass(frozen=True)
class Listed:
    """Exactly these steps.

    >>> Listed([0, 100, 200]).due(100)
    True
    """

    steps: Iterable[int]

    def __post_init__(self) -> None:
        wanted = frozenset(_whole(step) for step in self.steps)
        if not any(step >= 0 for step in wanted):
            raise ValueError("schedule: none of its steps is 0 or more, so that it would never fire; list some")
        object.__setattr__(self, "steps", tuple(sorted(wanted)))
        object.__setattr__(self, "_wanted", wanted)

    def due(self, step: int) -> bool:
        return step in self._wanted  # type: ignore[attr-defined]


@dataclass(frozen=True)
class LogSpaced:
    """Steps 0, 1 and on, `per_decade` to every factor of ten: dense where training is fast.

    >>> [step for step in range(120) if LogSpaced(3).due(step)]
    [0, 1, 2, 5, 10, 22, 46, 100]
    """

    per_decade: int = 10

    def __post_init__(self) -> None:
        check_count("per_decade", self.per_decade)

    def due(self, step: int) -> bool:
        place = 0 if step < 2 else round(self.per_decade * math.log10(step))
        return step == 0 or any(round(10 ** (i / self.per_decade)) == step for i in range(max(0, place - 1), place + 2))


@dataclass(frozen=True)
class PerEpoch:
    """`probes` evenly spaced probes in every epoch of `steps_per_epoch` steps, the first at its beginning.

    >>> [step for step in range(20) if PerEpoch(2, steps_per_epoch=9).due(step)]
    [0, 4, 9, 13, 18]
    """

    probes: int
    steps_per_epoch: int

    def __post_init__(self) -> None:
        check_count("steps_per_epoch", self.steps_per_epoch)
        check_count("probes", self.probes)
        if self.probes > self.steps_per_epoch:
            raise ValueError(
                f"probes: expected between 1 and the {self.steps_per_epoch} steps of an epoch, got {self.probes!r}"
            )

    def due(self, step: int) -> bool:
        within = step % self.steps_per_epoch
        return within in {i * self.steps_per_epoch // self.probes for i in range(self.probes)}


OF_STEPS_ALONE = (Every, Listed, LogSpaced, PerEpoch)
"""Schedules that depend on the step alone and agree in all processes; others may depend on a clock."""


def resolve_schedule(every: int | None, schedule: Schedule | Iterable[int] | None, budget: float | None) -> Schedule:
    """The schedule that was asked for; every step that the budget allows where none was."""
    if every is not None and schedule is not None:
        raise ValueError("every, schedule: give one of them, not both")
    if every is not None:
        return Every(every)
    if schedule is None:
        if budget is None:
            raise ValueError("every, schedule: give one of them where budget is None")
        return Every(1)
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(schedule, Iterable) and not isinstance(schedule, str):
        return Listed(schedule)
    raise TypeError(f"schedule: expected steps, or le.training.LogSpaced() and its like, got {schedule!r}")


def _whole(step: Any) -> int:
    if int(step) != step:
        raise ValueError(f"schedule: expected whole numbers from 0 on, got {step!r}")
    return int(step)
