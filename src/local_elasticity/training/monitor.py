"""The monitor: two lines in a training loop, and a live picture of how local the network's learning is."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from local_elasticity.checks import class_labels
from local_elasticity.emergence.feature_measures import FeatureMeasure
from local_elasticity.engine.guard import measuring, untouched
from local_elasticity.engine.job import Engine
from local_elasticity.engine.loss import LossFunction
from local_elasticity.engine.problem import Problem, as_problem
from local_elasticity.engine.update import DEFAULT_UPDATE, Update
from local_elasticity.measurement import Measurement, Sources, Targets
from local_elasticity.measures.registry import AnyMeasure
from local_elasticity.store.provenance import of_probes, versions
from local_elasticity.training.budget import Budget
from local_elasticity.training.distributed import decided, first
from local_elasticity.training.history import ONE_CLASS, History
from local_elasticity.training.loggers import Loggers
from local_elasticity.training.plan import Pace
from local_elasticity.training.probe import Prober, sorted_measures
from local_elasticity.training.probe_runner import ProbeRunner
from local_elasticity.training.schedule import OF_STEPS_ALONE, Schedule, resolve_schedule
from local_elasticity.warn import warn

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

logger = logging.getLogger("local_elasticity")

MEMORY = 2 << 30
"""Bytes that a probe may use beyond its result, unless `memory=` says otherwise."""


class Monitor:
    """Watches local elasticity while a network trains, at a cost you choose, and never changes the run.

    Wrong arguments raise at once. Later, `step` raises only for a step that is not a whole number or goes back, or
    where the store holds probes of an earlier run that was not resumed. If a probe fails, it is skipped with a
    `le.training.MonitorWarning`, and after three failures in a row probing stops (`stopped` says why). `probe` raises
    its error and tries again after a stop. If the parameters that step are the default, those that require a gradient,
    they are read again at every probe; a change is reported and kept in `history.notes`.

    Args:
        problem: from `Problem.of`, or a bare model together with `loss=`.
        sources, targets: as for `respond`; they are read once, at the start. Stiffness needs targets=(inputs, labels).
        labels: `"given"`, or `"predicted"` for sources that are inputs alone: the classes that the model predicts when
            the monitor is made.
        source_labels, target_labels: a class for each. They default to the sources' own labels where the loss is
            cross-entropy; without any, all examples are one class.
        class_names: what results call the classes: a list by label, or a dict from label to name.
        measure: as for `le.similarity`: a name, a `le.Measure`, a function of a `Response`, or several of these. A
            `le.emergence.FeatureMeasure` is accepted too.
        update: `SGD`, `Adam`, or `FromOptimizer(optimizer)`, the step that your optimizer would take now.
        every, schedule: every n steps; or steps listed, `LogSpaced`, `PerEpoch`, or anything with due(step) → bool.
            Without either, as often as the budget allows.
        budget: the share of the training time that probes may take. Where the schedule asks for more, probes are left
            out, listed in `skipped`, and reported. None takes every probe.
        total_steps: how many steps training will take. With it the probes of the whole run are planned, from the time
            of the first probe and of the first steps. They are spread over the run. If fewer than eight would fit,
            sources are left out, balanced by class as far as possible (`history[i].facts["sources_measured"]`).
        loggers: a TensorBoard SummaryWriter, a W&B run, MLflow, Lightning's loggers, or anything with
            log(values, step). One that raises is reported and left out from then on.
        store: a path; the history grows there as it is measured, survives a killed process, and is continued by a
            monitor with the same store after `load_state_dict`, if that measures the same. If it cannot be written,
            probes are kept in memory.
        engine, approximate, memory: as for `respond`; memory is 2 GiB by default. On a GPU the monitor records a probe
            when it is made, where it can, and keeps that memory; training then continues beside its probes.

    >>> import torch, local_elasticity as le
    >>> net, x, y = torch.nn.Linear(4, 2), torch.randn(6, 4), torch.arange(6) % 2
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> monitor = le.Monitor(net, (x, y), loss="cross_entropy", measure="kl", every=2, budget=None)
    >>> for step in range(5):
    ...     loss = torch.nn.functional.cross_entropy(net(x), y)
    ...     optimizer.zero_grad()
    ...     loss.backward()
    ...     optimizer.step()
    ...     probed = monitor.step(step)
    >>> monitor.history.steps, len(monitor.frame())
    ([0, 2, 4], 12)
    """

    @untouched
    def __init__(
        self,
        problem: Problem | Callable[..., Any],
        sources: Sources,
        *,
        targets: Targets | None = None,
        loss: str | LossFunction | None = None,
        labels: str = "given",
        source_labels: ArrayLike | None = None,
        target_labels: ArrayLike | None = None,
        class_names: Mapping[Any, str] | Sequence[str] | None = None,
        measure: AnyMeasure | FeatureMeasure | Iterable[AnyMeasure | FeatureMeasure] = "relative",
        update: Update = DEFAULT_UPDATE,
        every: int | None = None,
        schedule: Schedule | Iterable[int] | None = None,
        budget: float | None = 0.1,
        total_steps: int | None = None,
        loggers: Iterable[Any] = (),
        store: str | Path | None = None,
        engine: str | Engine = "auto",
        approximate: bool = False,
        memory: int | None = MEMORY,
        measures: Iterable[AnyMeasure | FeatureMeasure] | None = None,
    ) -> None:
        if measures is not None:
            warn("measures: le.Monitor calls it measure, as le.similarity does; write measure=", DeprecationWarning)
            measure = measures
        problem = as_problem(problem, loss)
        self.schedule = resolve_schedule(every, schedule, budget)
        outlets = Loggers(loggers)
        of_pairs, of_features = sorted_measures(measure)
        measurement = Measurement.read(
            problem,
            sources,
            targets,
            measures=of_pairs,
            update=update,
            engine=engine,
            approximate=approximate,
            memory=memory,
            labels=labels,
        )
        prober = Prober.of(measurement, of_features)
        source_classes, target_classes = _classes(prober, source_labels, target_labels, class_names)
        measured = prober.measurement
        history = History(
            tuple(one.name for one in measured.measures),
            source_classes,
            target_classes,
            numbers=tuple(prober.of_features),
            square=measured.square,
            store=store if first() else None,
            about={
                "update": repr(update),
                "loss": problem.loss_name,
                "policy": problem.policy,
                "versions": versions(),
                "words": {one.name: one.words for one in measured.measures},
            },
            provenance=of_probes(
                problem,
                measured.sources,
                measured.targets,
                measured.target_labels,
                {one.name: one for one in measured.measures} | {one.name: one.measure for one in of_features.values()},
                measured.update if measured.takes_steps else None,
                approximate=approximate,
            ),
        )
        self._runner = ProbeRunner(prober, history, Budget(budget), outlets)
        self._pace = Pace(self.schedule, self._runner, asked=every is not None or schedule is not None)
        self._pace.plan_for(total_steps)
        self._resumed = len(history) == 0
        self._seen: int | None = None
        self._told = False

    def __repr__(self) -> str:
        history, asked = self._runner.history, self._runner.prober.measurement
        measures = ", ".join((*history.measures, *history.numbers))
        size = f"{len(history.source_classes)} sources × {len(history.target_classes)} targets"
        when = repr(self.schedule) if self._pace.asked else "as often as the budget allows"
        share = "no budget" if self.budget.share is None else f"budget {self.budget.share:.3g} of the training time"
        taken = f"{len(history)} probe{'s' * (len(history) != 1)}"
        taken += f", the last at step {history[-1].step}" if len(history) else ""
        taken += f", {len(self.skipped)} left out" if self.skipped else ""
        words = [measures, size, *([repr(asked.update)] if asked.takes_steps else []), when, share, taken]
        return f"<Monitor: {'; '.join([*words, *([self.stopped] if self.stopped else [])])}>"

    @property
    def history(self) -> History:
        """All probes so far; if a GPU is still computing one, this waits for it."""
        self._runner.finish()
        return self._runner.history

    @property
    def budget(self) -> Budget:
        """What probes may take of the training time, and what they took."""
        return self._runner.budget

    @property
    def skipped(self) -> list[int]:
        """Steps whose probe was left out to keep the budget, because memory did not suffice, or because it failed."""
        return self.budget.skipped

    @property
    def stopped(self) -> str | None:
        """Why and since when nothing is probed, after three failures in a row; None while probing continues."""
        return self._runner.failures.stopped

    def step(self, step: int) -> bool:
        """Probe at this step of training if a probe is due. A probe that fails is reported and skipped.

        Args:
            step: the step that training is at, counted over all epochs.

        Returns:
            Whether a probe was taken. A call from a hook of the model that runs inside a probe takes none.

        Raises:
            TypeError: if the step is not a whole number.
            ValueError: if it is not after the last probe's, or the store holds probes of a run that was not resumed.
        """
        return False if measuring() else self._step(step)

    @untouched
    def _step(self, step: int) -> bool:
        self._runner.look()
        number = self._checked(step)
        return self._runner.safely(number, lambda: self._wanted(number) and self._runner.take(number))

    def _wanted(self, step: int) -> bool:
        """Whether to probe now, as rank 0 decides; ranks do not communicate at steps that all know not to be due.

        Rank 0 also decides when probing stops. It still broadcasts its answer then, so that no rank waits for another.
        """
        known = isinstance(self.schedule, OF_STEPS_ALONE)
        if known and not self.schedule.due(step):
            return False
        return decided(first() and self.stopped is None and self._runner.safely(step, lambda: self._pace.due(step)))

    @untouched
    def probe(self, step: int) -> bool:
        """Probe now, whatever the schedule and the budget say. A recorded probe runs on the GPU beside training.

        Args:
            step: the step that training is at, counted over all epochs.

        Returns:
            True, or False if memory did not suffice.

        Raises:
            Exception: any error of the model or a measure, and those of `step`.
        """
        return self._runner.take(self._checked(step))

    def frame(self, **options: Any) -> pd.DataFrame:
        """A row for every step, measure and pair of classes: value, low, high, pairs, unresolved.

        Args:
            options: `reduce` and `resamples`, as for `le.class_pairs`.

        Returns:
            A DataFrame.
        """
        self._tell_if_silent()
        return self.history.frame(**options)

    def plot(self, columns: int = 2) -> Figure:
        """The curves of all class pairs with their bands; with many classes, those within and between classes.

        Args:
            columns: as wide as 1 or 2 columns of print.

        Returns:
            A matplotlib Figure; `.savefig(path)` writes it.

        Raises:
            ValueError: if no probe was taken yet.
        """
        return self.history.plot(columns)

    def _repr_html_(self) -> str:
        """What notebooks show: the last matrices, their class pairs, and whether to believe them."""
        return self.history._repr_html_()

    def locality(self, **options: Any) -> pd.DataFrame:
        """A row for every step and measure: how far a step moves its own class, compared with others.

        Args:
            options: `resamples` and `permutations`, as for `le.locality`; both are 0 by default.

        Returns:
            A DataFrame with `step`, `measure`, `within`, `between`, `ratio`, `times`, `balanced` and numbers of pairs;
            with resamples also intervals, with permutations also `baseline` and `p_value`, with both `verdict`. Ratios
            are NaN where there is one class only or the median within classes is not positive; a warning is logged.
        """
        self._tell_if_silent()
        return self.history.locality(**options)

    def phases(self) -> pd.DataFrame:
        """For every measure: how local learning was at the start and at the end, and when that changed.

        Returns:
            A DataFrame: measure, of, first, late, half_life, change_step, before, after, p_value. From fewer than four
            probes only the first value is given.
        """
        self._tell_if_silent()
        self._pace.tell_if_few(len(self.history))
        return self.history.phases()

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: plain values and tensors. With a store the history stays there and is not copied.

        Returns:
            A dict for `load_state_dict`.
        """
        history = self.history
        return {
            "step": -1 if self._seen is None else self._seen,
            **history.identity,
            "budget": self.budget.state(),
            "taken": len(history),
            "probes": [] if history.stored else history.state(),
            "notes": dict(history.notes),
            "of_features": {name: one.state() for name, one in self._runner.prober.of_features.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint. Later probes belong to steps that will be taken again, and are dropped.

        Args:
            state: what `state_dict` returned.

        Raises:
            ValueError: if it is not a monitor's state, is damaged, or belongs to other measures or examples.
        """
        if not (isinstance(state, Mapping) and {"step", "budget", "probes", "of_features"} <= set(state)):
            raise ValueError("state: it is not a monitor's; give what Monitor.state_dict() returned")
        history = self.history
        self._check_state(state)
        history.load(state["probes"], int(state["step"]), state.get("notes"))
        if first() and len(history) < int(state.get("taken", 0)):
            logger.warning(
                "store: the checkpoint's monitor had taken %d probes, of which %d are here; the others are in the "
                "store that it wrote to",
                state["taken"],
                len(history),
            )
        self.budget.load(state["budget"])
        for name, one in state["of_features"].items():
            self._runner.prober.of_features[name].load(one)
        self._seen, self._resumed = int(state["step"]), True

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise a ValueError if a state is damaged, before any of it is taken over."""
        prober = self._runner.prober
        try:
            self.history.check_identity(state)
        except TypeError as error:
            raise ValueError(f"state: it is damaged ({error}); use another checkpoint") from error
        try:
            int(state["step"]), int(state.get("taken", 0)), dict(state.get("notes") or {})
            self.budget.check(state["budget"])
            for probe in state["probes"]:
                int(probe["step"]), float(probe["seconds"]), str(probe["engine"]), dict(probe.get("facts", {}))
                similarity = {name: probe["similarity"][name] for name in self._runner.history.measures}
                _check_shapes("similarities", similarity, (prober.n, prober.m))
                denominators = {name: probe["denominators"][name] for name in probe.get("denominators", {})}
                _check_shapes("denominators", denominators, (2, prober.n))
            for name in dict(state["of_features"]):
                prober.of_features[name]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
            raise ValueError(
                f"state: it is damaged ({type(error).__name__}: {error}); use another checkpoint"
            ) from error

    def resume(self, step: int) -> None:
        """Continue after `step` without a checkpoint of the monitor. Probes in the store up to there are kept.

        Args:
            step: the last step that was taken.
        """
        self.history.keep_until(step)
        self._seen, self._resumed = step, True

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()

    def close(self) -> None:
        """Write what the store lacks, and log at the end of training that nothing was measured, what was left out,
        or that probing stopped."""
        self._tell_if_silent()
        self._pace.tell_if_few(len(self.history))
        self.history.flush()
        if self.skipped:
            logger.info("local elasticity: %d probes taken, %d left out", len(self.history), len(self.skipped))
        if self.stopped:
            logger.warning("monitor: %s", self.stopped)

    def _tell_if_silent(self) -> None:
        """Say once that the schedule never fired."""
        if not (len(self.history) or self.skipped or self._seen is None or self._told):
            logger.warning("schedule: it never fired up to step %d, so that nothing was measured", self._seen)
            self._told = True

    def _checked(self, step: Any) -> int:
        """The step as a number, after the last probe's."""
        try:
            number: int = operator.index(step)
        except TypeError:
            raise TypeError(f"step: expected a whole number, got {step!r}") from None
        last = self._runner.last_step
        if number <= last and not self._resumed:
            raise ValueError(
                f"store: it holds {len(self.history)} probes up to step {last}, and training is at "
                f"step {number}; call load_state_dict or resume to continue, or choose another path"
            )
        if number <= last:
            raise ValueError(f"step: {number} was given after step {last}; count steps over all epochs, not within one")
        self._resumed, self._seen = True, number
        return number


def _check_shapes(what: str, arrays: Mapping[str, Any], shape: tuple[int, ...]) -> None:
    for name, array in arrays.items():
        if tuple(array.shape) != shape:
            raise ValueError(f"expected {what} of shape {shape}, got {tuple(array.shape)} for {name}")


def _classes(
    prober: Prober, source_labels: Any, target_labels: Any, class_names: Mapping[Any, str] | Sequence[str] | None
) -> tuple[list[Any], list[Any]]:
    """The classes of sources and targets."""
    sources, targets = prober.measurement.classes(source_labels, target_labels, class_names)
    return _labels(sources, prober.n, "source_labels"), _labels(targets, prober.m, "target_labels")


def _labels(labels: Any, size: int, name: str) -> list[Any]:
    if labels is None:
        return [ONE_CLASS] * size
    return list(class_labels(name, labels, size).tolist())
