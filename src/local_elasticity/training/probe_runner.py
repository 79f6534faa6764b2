"""ProbeRunner: takes probes and records them; a probe on a GPU is recorded as soon as it is ready.

Training continues beside such a probe. Nothing of it is lost: reading the history and ending the process wait for it.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from local_elasticity.engine.causes import MOSTLY, ROUNDING, UnresolvedWarning, unresolved_in_words
from local_elasticity.engine.fast_paths.replay import Launched
from local_elasticity.engine.guard import interruption, notes_on_autocast, raise_interruption
from local_elasticity.engine.nonlinearity import LargeStepWarning, in_words
from local_elasticity.engine.progress import wait_for
from local_elasticity.engine.update import step_sizes_of
from local_elasticity.measurement import unresolved_share
from local_elasticity.training.budget import Budget
from local_elasticity.training.distributed import first, for_want_of_memory, together
from local_elasticity.training.failures import Failures, MonitorWarning, first_line, tell
from local_elasticity.training.history import History, Probe
from local_elasticity.training.loggers import Loggers
from local_elasticity.training.phases import logged_values
from local_elasticity.training.probe import Found, Prober
from local_elasticity.words import step_sizes

logger = logging.getLogger("local_elasticity")


@dataclass(frozen=True)
class UnderWay:
    """A probe that a GPU is computing, the measures of features at its step, and the state of its sources."""

    step: int
    launched: Launched
    numbers: dict[str, float]
    state: Tensor


class ProbeRunner:
    """Takes probes, one at a time, within a budget's accounts, for a history and for loggers.

    `take` raises what goes wrong with a probe. `safely` reports it instead, for training that must continue.
    """

    def __init__(self, prober: Prober, history: History, budget: Budget, loggers: Loggers) -> None:
        self.prober, self.history, self.budget, self.loggers = prober, history, budget, loggers
        self.failures = Failures()
        self.rows: np.ndarray | None = None
        """The sources that are measured; None for all."""
        self._under_way: UnderWay | None = None
        self._large_step_told = False
        self._autocast_told = self._rates_told = False
        self._unresolved_told: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether a probe is in progress."""
        return self._under_way is not None

    @property
    def last_step(self) -> int:
        """The step of the last probe, including one in progress; −1 if there is none."""
        if self._under_way is not None:
            return self._under_way.step
        return self.history[-1].step if len(self.history) else -1

    def take(self, step: int) -> bool:
        """Probe now; False if memory did not suffice."""
        self.finish()
        taken = self._spared(step, lambda: self._begin(step))
        return taken if self._beside() else taken and self._finished()

    def safely(self, step: int, work: Callable[[], bool]) -> bool:
        """Do the work of a probe; False if it fails, which is reported, counted and listed as skipped."""
        try:
            return work()
        except (MonitorWarning, LargeStepWarning, UnresolvedWarning):  # the user has turned these into errors
            raise
        except Exception as error:
            if interruption(error):  # a signal handler raised it, to end the run
                raise
            self.budget.skipped.append(step)
            if self.failures.count(step, error) and self.failures.stopped:
                self.history.note(step, self.failures.stopped)
            self.failures.tell_of_probe(step, error)
            return False

    def look(self) -> None:
        """Record the probe in progress if it has finished."""
        one = self._under_way
        if one is not None:
            self.safely(one.step, lambda: not one.launched.done or self._finished())

    def finish(self) -> bool:
        """Wait for the probe in progress, and record it; False if it failed. If interrupted, call it again."""
        one = self._under_way
        return one is None or self.safely(one.step, self._finished)

    def _finished(self) -> bool:
        one = self._under_way
        try:
            done = one is None or self._spared(one.step, lambda: self._end(one))
        except Exception:
            self._let_go()
            raise
        self._let_go()
        return done

    def _let_go(self) -> None:
        self._under_way = None
        atexit.unregister(self.finish)

    def _follow_model(self, step: int) -> None:
        """Read again which parameters step, and where they are; say what has changed."""
        earlier = self.prober.standing
        self.prober = together(self.prober.at_present)
        stepped, placed = self.prober.standing.stepped_since(earlier), self.prober.standing.placed_since(earlier)
        if stepped or placed:
            self.history.note(step, "; ".join(part for part in (stepped, placed) if part))
        if placed:
            logger.info("monitor: from step %d on, %s", step, placed)
        if stepped:
            tell(f"monitor: the stepped parameters changed at step {step}: {stepped}. Probing continues")

    def _beside(self) -> bool:
        """Whether training may continue beside a probe: not if a logger needs its steps in order, nor while cuDNN times
        kernels."""
        return not (self.loggers.in_order or torch.backends.cudnn.benchmark)

    def _begin(self, step: int) -> None:
        self._follow_model(step)
        self._tell_of_autocast(step)
        wait_for(self.prober.device)  # what training has queued is not the probe's
        with self.budget.probing():
            numbers = self._numbers(step)
            asked = self.prober if self.rows is None else self.prober.sampled(self.rows)
            launched = asked.launched()
            found = None if launched else asked()
            state = self.prober.state_of_sources()
        if found is not None:
            self._record(step, found, numbers, state)
        elif launched is not None:
            self._under_way = UnderWay(step, launched, numbers, state)
            atexit.register(self.finish)

    def _end(self, one: UnderWay) -> None:
        if len(self.history) and self.history[-1].step == one.step:
            return  # it was interrupted after it was recorded
        self.budget.charge(one.launched.wait())
        with self.budget.recording():
            found = self.prober.found()
        self._record(one.step, found, one.numbers, one.state)

    def _record(self, step: int, found: Found, numbers: dict[str, float], state: Tensor) -> None:
        with self.budget.recording():
            facts = self._facts(found, state)
            similarity = {name: self._whole(found.similarity.get(name)) for name in self.history.measures}
            seconds = self.budget.last_seconds
            denominators = {name: self._of_all(one) for name, one in found.denominators.items()}
            self.history.append(Probe(step, similarity, seconds, found.engine, numbers, facts, denominators))
            self.failures.worked()
            if first() and self.loggers:
                self._log(step, numbers)
        self._tell_of_measures(step, found.errors)
        self._tell_of_rates(step)
        self._tell_of_large_step(step, found)
        self._tell_of_unresolved(step, found)

    def _whole(self, S: np.ndarray | None) -> np.ndarray:
        """A similarity of all sources and targets, NaN where it was not measured or failed."""
        whole = np.full((self.prober.n, self.prober.m), np.nan)
        if S is not None:
            rows = self._measured_rows
            whole[np.ix_(rows, rows if self.history.square else np.arange(self.prober.m))] = S
        return whole

    def _of_all(self, denominators: np.ndarray) -> np.ndarray:
        """Those of all sources, [2, n], NaN where a source was not measured."""
        whole = np.full((2, self.prober.n), np.nan)
        whole[:, self._measured_rows] = denominators
        return whole

    @property
    def _measured_rows(self) -> np.ndarray:
        return np.arange(self.prober.n) if self.rows is None else self.rows

    def _facts(self, found: Found, state: Tensor) -> dict[str, float]:
        """What is known of a probe besides its measures."""
        loss, accuracy = state.tolist()
        return {
            "step_size": step_sizes_of(self.prober.measurement.update)[-1],
            "nonlinearity": found.nonlinearity,
            "source_loss": loss,
            "source_accuracy": accuracy,
            "sources_measured": float(self.prober.n if self.rows is None else len(self.rows)),
        }

    def _tell_of_autocast(self, step: int) -> None:
        """Keep it once with the step that probes are taken without autocast, where the run had it on."""
        for note in [] if self._autocast_told else notes_on_autocast(self.prober.device):
            self._autocast_told = True
            self.history.note(step, note)

    def _tell_of_rates(self, step: int) -> None:
        """Keep it once with the step that parameter groups have different step sizes; the facts have the largest."""
        rates = step_sizes_of(self.prober.measurement.update)
        if len(rates) > 1 and not self._rates_told:
            self._rates_told = True
            self.history.note(step, f"the parameter groups have {step_sizes(rates)}; the largest is recorded")

    def _tell_of_large_step(self, step: int, found: Found) -> None:
        """Say once, and keep it with the step, that changes are far from those of small steps."""
        words = in_words(found.nonlinearity)
        if words and not self._large_step_told and first():
            self._large_step_told = True
            self.history.note(step, f"changes deviate by {found.nonlinearity:.0%} from those of small steps")
            tell(words, category=LargeStepWarning)

    def _tell_of_unresolved(self, step: int, found: Found) -> None:
        """Say once of every measure, and keep it with the step, why most of its pairs have no value."""
        for measure in self.prober.measurement.measures:
            share = unresolved_share(found.similarity.get(measure.name, np.zeros((1, 1))))
            if share <= MOSTLY or measure.name in self._unresolved_told or not first():
                continue
            self._unresolved_told.add(measure.name)
            cause = found.causes.get(measure.name)
            self.history.note(step, f"{share:.0%} of the pairs of {measure.name} are unresolved: {cause or ROUNDING}")
            words = unresolved_in_words(measure.name, share, cause, takes_steps=measure.takes_steps)
            tell(words, category=UnresolvedWarning)

    def _log(self, step: int, numbers: dict[str, float]) -> None:
        try:
            values = logged_values(self.history.measured(self.history[-1]))
        except Exception as error:
            raise_interruption(error)
            message = f"loggers: nothing to log at step {step} ({first_line(error)}); training continues"
            self.failures.tell_once("loggers", message, error)
            return
        self.loggers.log(values | {f"local_elasticity/{name}": value for name, value in numbers.items()}, step)

    def _numbers(self, step: int) -> dict[str, float]:
        """Measures of features; NaN where the features have none, such as in a run that diverges."""
        if not self.history.numbers:
            return {}
        numbers, errors = self.prober.numbers()
        self._tell_of_measures(step, errors)
        return numbers

    def _tell_of_measures(self, step: int, errors: Mapping[str, Exception]) -> None:
        if not errors:
            return
        error = next(iter(errors.values()))
        message = (
            f"measure: {', '.join(errors)} failed at step {step} ({first_line(error)}). The values are NaN wherever a "
            "measure fails; the other measures and training continue"
        )
        self.failures.tell_once(("measures", *errors), message, error)

    def _spared(self, step: int, work: Callable[[], None]) -> bool:
        """Whether there was memory for it; training continues where there was not."""
        try:
            work()
        except (RuntimeError, MemoryError) as error:
            if not for_want_of_memory(error):
                raise
            message = (
                f"monitor: there is not enough memory for the probe at step {step} ({first_line(error)}). It is "
                "skipped and training continues; later probes try again"
            )
            self.budget.skipped.append(step)
            self.failures.tell_once("memory", message, error)
            return False
        return True
