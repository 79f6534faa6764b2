"""The budget: how much of the training time probes may take, and what was left out to keep it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger("local_elasticity")


@dataclass
class Budget:
    """Probing may take `share` of the training time; None lets every probe through.

    The first probe is always taken. Another is affordable where the probes so far and one like the last together stay
    within the share, so that a schedule that asks for more is thinned out instead of slowing training down.

    >>> now = iter([0.0, 1.0, 3.0, 10.0, 45.0])
    >>> budget = Budget(0.1, clock=lambda: next(now))  # the clock starts at 0
    >>> with budget.probing():  # from 1 to 3
    ...     pass
    >>> budget.affords(10), budget.affords(45)  # after 8 and after 43 seconds of training: 2 + 2 are needed
    (False, True)
    >>> budget.skipped
    [10]
    """

    share: float | None = 0.1
    clock: Callable[[], float] = time.perf_counter
    probing_seconds: float = 0.0
    last_seconds: float = 0.0
    earlier_seconds: float = 0.0
    skipped: list[int] = field(default_factory=list)
    refused: int = 0

    def __post_init__(self) -> None:
        share = self.share
        if share is not None and not (isinstance(share, (int, float)) and share > 0):
            raise ValueError(f"budget: expected a positive share of the training time, or None, got {share!r}")
        self._told = False
        self.restart()

    def restart(self) -> None:
        """Count training time from now on."""
        self._began = self.clock()

    @property
    def training_seconds(self) -> float:
        """Seconds spent on anything but probing."""
        return self.earlier_seconds + self.clock() - self._began - self.probing_seconds

    def affords(self, step: int, *, busy: bool = False, asked: bool = True) -> bool:
        """Whether a probe may be taken now; if not, a step that was `asked` for is recorded as skipped. No probe may be
        taken while the GPU is `busy` with the last one, whose cost is not known yet."""
        if self.share is None or (self.last_seconds == 0 and not busy):
            return True
        if self.probing_seconds + self.last_seconds <= self.share * self.training_seconds and not busy:
            return True
        self.leave_out(step, busy=busy, asked=asked)
        return False

    def leave_out(self, step: int, *, busy: bool = False, asked: bool = True) -> None:
        """Count a due step whose probe does not fit; one that was `asked` for is listed, and reported once."""
        self.refused += 1
        if not asked or self.share is None:
            return
        if not (self._told or busy):
            self._told = True
            logger.warning(
                "local elasticity: probes are due more often than %.0f %% of the training time allows (one took "
                "%.3g s); those that do not fit are left out and listed in monitor.skipped; a larger every= spreads "
                "them evenly, budget=None takes all",
                100 * self.share,
                self.last_seconds,
            )
        self.skipped.append(step)

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Measure the time spent on a probe."""
        self.last_seconds = 0.0
        with self.recording():
            yield

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Measure the time spent on recording the last probe, which is part of its cost."""
        began = self.clock()
        try:
            yield
        finally:
            self.charge(self.clock() - began)

    def charge(self, seconds: float) -> None:
        """Add seconds to the last probe. Seconds on a GPU beside training count as if training had waited."""
        self.last_seconds += seconds
        self.probing_seconds += seconds

    def state(self) -> dict[str, Any]:
        return {
            "training_seconds": self.training_seconds,
            "probing_seconds": self.probing_seconds,
            "last_seconds": self.last_seconds,
            "skipped": list(self.skipped),
        }

    def check(self, state: dict[str, Any]) -> None:
        """Raise an error if a state lacks an entry or has one of another type."""
        for name in ("training_seconds", "probing_seconds", "last_seconds"):
            float(state[name])
        for step in state["skipped"]:
            int(step)

    def load(self, state: dict[str, Any]) -> None:
        self.probing_seconds, self.last_seconds = float(state["probing_seconds"]), float(state["last_seconds"])
        self.skipped = [int(step) for step in state["skipped"]]
        self._told = bool(self.skipped)
        self.restart()
        self.earlier_seconds = float(state["training_seconds"]) + self.probing_seconds
