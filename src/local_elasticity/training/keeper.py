"""The keeper: takes probes and writes them down; one that was left to a GPU as soon as that has it ready.

Training goes on beside such a probe, and nothing of it is lost: whoever reads the history waits for it, and so does the
end of the process.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from local_elasticity.engine.clock import wait_for
from local_elasticity.engine.memory import is_out_of_memory
from local_elasticity.engine.replay import Launched
from local_elasticity.training.budget import Budget
from local_elasticity.training.distributed import OthersFailedError, first
from local_elasticity.training.history import History, Probe
from local_elasticity.training.loggers import Loggers
from local_elasticity.training.phases import logged_values
from local_elasticity.training.probe import Prober

logger = logging.getLogger("local_elasticity")


@dataclass(frozen=True)
class UnderWay:
    """A probe that a GPU is at, and the measures of features at its step."""

    step: int
    launched: Launched
    numbers: dict[str, float]


class Keeper:
    """Takes probes, one at a time, within a budget's accounts, for a history and for loggers."""

    def __init__(self, prober: Prober, history: History, budget: Budget, loggers: Loggers) -> None:
        self.prober, self.history, self.budget, self.loggers = prober, history, budget, loggers
        self._under_way: UnderWay | None = None

    @property
    def busy(self) -> bool:
        """Whether a probe is under way."""
        return self._under_way is not None

    @property
    def last_step(self) -> int:
        """The step of the last probe, also of one under way; −1 where there is none."""
        if self._under_way is not None:
            return self._under_way.step
        return self.history[-1].step if len(self.history) else -1

    def take(self, step: int) -> bool:
        """Probe now; False where memory did not suffice."""
        self.finish()
        wait_for(self.prober.sources[1].device)  # what training has queued is not the probe's
        taken = self._spared(step, lambda: self._begin(step))
        return taken if self._beside() else taken and self.finish()

    def look(self) -> None:
        """Write down the probe that was under way, where it is done."""
        if self._under_way is not None and self._under_way.launched.done:
            self.finish()

    def finish(self) -> bool:
        """Wait for the probe under way, and write it down; False where memory did not suffice. If interrupted, call it
        again.
        """
        one = self._under_way
        done = one is None or self._spared(one.step, lambda: self._end(one))
        self._under_way = None
        atexit.unregister(self.finish)
        return done

    def _beside(self) -> bool:
        """Whether training may go on beside a probe: neither for loggers that want their steps in order nor while cuDNN
        times kernels."""
        return not (self.loggers.in_order or torch.backends.cudnn.benchmark)

    def _begin(self, step: int) -> None:
        with self.budget.probing():
            numbers = self._numbers(step)
            launched = self.prober.launched()
            found, engine = ({}, "") if launched else self.prober()
        if launched is None:
            self._record(step, found, engine, numbers)
            return
        self._under_way = UnderWay(step, launched, numbers)
        atexit.register(self.finish)

    def _end(self, one: UnderWay) -> None:
        if len(self.history) and self.history[-1].step == one.step:
            return  # it was interrupted after it was written down
        self.budget.charge(one.launched.wait())
        with self.budget.recording():
            found, engine = self.prober.found()
        self._record(one.step, found, engine, one.numbers)

    def _record(self, step: int, found: dict[str, np.ndarray], engine: str, numbers: dict[str, float]) -> None:
        with self.budget.recording():
            self.history.append(Probe(step, found, self.budget.last_seconds, engine, numbers))
            if first() and self.loggers:
                classes = self.history.source_classes, self.history.target_classes
                values = logged_values(found, *classes, square=self.history.square)
                of_features = {f"local_elasticity/{name}": value for name, value in numbers.items()}
                self.loggers.log(values | of_features, step)

    def _numbers(self, step: int) -> dict[str, float]:
        """Measures of features; NaN where the features have none, such as in a run that diverges."""
        if not self.history.numbers:
            return {}
        try:
            return self.prober.numbers()
        except ValueError as error:
            logger.warning("local elasticity: no measures of features at step %d (%s)", step, error)
            return dict.fromkeys(self.history.numbers, float("nan"))

    def _spared(self, step: int, work: Callable[[], None]) -> bool:
        """Whether there was memory for it; training goes on where there was not."""
        try:
            work()
        except (RuntimeError, MemoryError) as error:
            if not (isinstance(error, OthersFailedError) or is_out_of_memory(error)):
                raise
            logger.warning("local elasticity: no probe at step %d (%s); training goes on", step, error)
            self.budget.skipped.append(step)
            return False
        return True
