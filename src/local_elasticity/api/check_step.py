"""check_step: whether a step is small enough for similarities to describe the network, and which step is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from local_elasticity.api.printed import Printed
from local_elasticity.checks import check_count, check_share
from local_elasticity.engine.causes import ROUNDING, TOO_LARGE, cause_of_rest
from local_elasticity.engine.guard import raise_interruption, untouched
from local_elasticity.engine.inputs import spread, take
from local_elasticity.engine.linearized import Linearized
from local_elasticity.engine.loss import LossFunction
from local_elasticity.engine.nonlinearity import ALLOWED, LARGE, are_clear, deviations
from local_elasticity.engine.problem import Problem, as_problem
from local_elasticity.engine.progress import Progress, ProgressOption
from local_elasticity.engine.response import Response
from local_elasticity.engine.update import DEFAULT_UPDATE, SGD, Adam, Update, step_sizes_of
from local_elasticity.extras import extra
from local_elasticity.measurement import Measurement, Sources, Targets, unresolved_share
from local_elasticity.measures.registry import AnyMeasure, as_measures
from local_elasticity.statistics.bootstrap import median_interval
from local_elasticity.statistics.comparison import LEAST_UNITS
from local_elasticity.statistics.correlation import spearman_of_pairs
from local_elasticity.words import step_sizes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

EXAMPLES = 30
"""The most sources, and targets, that steps are tried on."""

OTHERS = (0.01, 0.1, 10.0)
"""The other step sizes that are tried, as multiples of the one in question."""

LIMIT = 1e-3
"""The step size that linear responses are computed at."""

ORDER_KEPT, ORDER_LOST = 0.99, 0.9
"""Rank correlations with the limit of small steps from which on the order of similarities is kept, and below which it
is lost."""

TINY = 1e-6
"""Of a linear response, a share so small that probabilities are linear in it as well."""

MEANINGS = {
    "small": "similarities describe the network, as in the limit of small steps",
    "moderate": "similarities are near the limit of small steps, but not equal to it",
    "large": "similarities describe this very step, not the network in the limit of small steps",
}


@dataclass(frozen=True)
class StepTrial:
    """A step, compared with the limit of small steps.

    Attributes:
        step_size: η of the update; the largest of an optimizer's parameter groups.
        deviation: ‖R − JΔ‖ / ‖JΔ‖ of the outputs, the median over sources; infinite where changes overflow.
        deviation_low, deviation_high: its interval; sources are resampled.
        rank_correlation: of the similarities with those of small steps, over pairs.
        rank_low, rank_high: its interval; sources and targets are resampled.
        unresolved: the share of pairs without a value.
    """

    step_size: float
    deviation: float
    deviation_low: float
    deviation_high: float
    rank_correlation: float
    rank_low: float
    rank_high: float
    unresolved: float

    @property
    def verdict(self) -> str:
        """`"small"` or `"large"` if both ends of an interval say so, `"moderate"` between them, or `"unknown"` if no
        change has digits or no pair of a step that is not large has a value."""
        if np.isnan(self.deviation):
            return "unknown"
        if self.deviation_low > LARGE or self.rank_high < ORDER_LOST:
            return "large"
        if self.unresolved == 1:
            return "unknown"
        kept = np.isnan(self.rank_correlation) or self.rank_low >= ORDER_KEPT
        return "small" if self.deviation_high <= ALLOWED and kept else "moderate"


@dataclass(frozen=True, repr=False)
class StepCheck(Printed):
    """Whether a step is small; build one with `le.check_step`.

    Attributes:
        asked: the step in question.
        trials: this and other step sizes, from the smallest to the largest.
        recommended: the step size that `le.SGD("auto")` takes; None for an update that is not SGD.
        measure: the similarity that is compared.
        sources, targets: how many the steps were tried on.
        level: of the intervals.
        step_sizes: η of the update, or those of an optimizer's parameter groups, ascending.
        cause: why the verdict is unknown, if it is.
    """

    asked: StepTrial
    trials: tuple[StepTrial, ...]
    recommended: float | None
    measure: str
    sources: int
    targets: int
    level: float
    step_sizes: tuple[float, ...]
    cause: str | None = None

    @property
    def verdict(self) -> str:
        """`"small"`, `"moderate"`, `"large"`, or `"unknown"` if rounding hides all changes."""
        return self.asked.verdict

    def frame(self) -> pd.DataFrame:
        """One row for each step size that was tried: deviation, rank correlation, their intervals, a verdict.

        Returns:
            A frame with the attributes of `StepTrial` as columns.
        """
        import pandas as pd

        return pd.DataFrame([{**asdict(trial), "verdict": trial.verdict} for trial in self.trials])

    def plot(self, columns: int = 1) -> Figure:
        """Deviation and rank correlation over the step size.

        Args:
            columns: 1 or 2, the width in columns of print.

        Returns:
            A matplotlib figure.
        """
        with extra("report"):
            from local_elasticity.report.figures import step_figure

        return step_figure(self.trials, self.asked.step_size, self.recommended, columns)

    def sentences(self) -> list[str]:
        """The verdict, what it rests on, and what to do.

        Returns:
            One sentence each.
        """
        at, step = self.asked, step_sizes(self.step_sizes)
        if self.verdict == "unknown":
            return [f"{step}: no verdict, {self.cause}"]
        verb = "is" if len(self.step_sizes) == 1 else "are"
        if np.isinf(at.deviation):
            return [f"{step} {verb} {self.verdict}: {TOO_LARGE}", *self._advice()]
        told = [f"{step} {verb} {self.verdict}: {MEANINGS[self.verdict]}"]
        told.append(
            f"changes deviate by {100 * at.deviation:.2g} % from those of small steps (median of {self.sources} "
            f"sources; {self.level:.0%} interval {100 * at.deviation_low:.2g} to {100 * at.deviation_high:.2g} %)"
        )
        if np.isfinite(at.rank_correlation):
            told.append(
                f"the order of {self.measure} at {self.targets} targets has a rank correlation of "
                f"{at.rank_correlation:.3g} ({at.rank_low:.3g} to {at.rank_high:.3g}) with that of small steps"
            )
        return [*told, *self._advice()]

    def _advice(self) -> list[str]:
        if self.recommended is not None:
            return [f'le.SGD("auto") takes {self.recommended:g}: nine in ten changes are within {ALLOWED:.0%} there']
        if self.verdict == "small":
            return []
        return ['to describe the network, take le.SGD("auto"); to predict what your next step does, keep this step']


@untouched
def check_step(
    problem: Problem | nn.Module,
    sources: Sources,
    targets: Targets | None = None,
    *,
    loss: str | LossFunction | None = None,
    update: Update = DEFAULT_UPDATE,
    measure: AnyMeasure = "relative",
    labels: str = "given",
    level: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
    progress: ProgressOption = None,
) -> StepCheck:
    """Whether a step is small: how far changes and similarities are from their limit of small steps.

    Up to 30 of the sources take the step, and others of 1/100 to 10 times its size where it is `SGD` or `Adam`. Their
    exact responses are compared with the linear one. A step is small if changes deviate by at most 1 % and similarities
    keep their order (rank correlation of 0.99 or more), large if changes deviate by more than 10 % or the rank
    correlation is below 0.9, by both ends of their intervals; and moderate otherwise.

    Args:
        problem, sources, targets, loss, update, labels, progress: as for `respond`.
        measure: the similarity whose order is compared.
        level, resamples, seed: of the intervals, which resample sources and targets.

    Returns:
        A `StepCheck`: `.verdict`, `.recommended`, `.frame()`, `.plot()`; printed, sentences.

    Raises:
        ValueError, TypeError: what is wrong with an argument; the message begins with its name.

    >>> import torch, local_elasticity as le
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
    >>> sources = torch.randn(12, 4), torch.arange(12) % 3
    >>> [le.check_step(net, sources, loss="cross_entropy", update=le.SGD(size)).verdict for size in (1e-3, 100.0)]
    ['small', 'large']
    """
    check_share("level", level)
    check_count("resamples", resamples)
    check_count("seed", seed, least=0)
    if isinstance(measure, (tuple, list)):
        raise ValueError("measure: expected one measure; call le.check_step once for each of them")
    measures = as_measures(measure)
    if not measures[0].takes_steps:
        raise ValueError(f"measure: {measures[0].name} takes no step, so that none is too large; choose another")
    asked = Measurement.read(
        as_problem(problem, loss), sources, targets, measures=measures, update=update, labels=labels
    )
    few = _few(asked)
    if few.n < LEAST_UNITS:
        raise ValueError(f"sources: a verdict needs at least {LEAST_UNITS} of them, got {few.n}")
    updates, recommended = [asked.update], None
    if isinstance(asked.update, SGD):
        recommended = _recommended(asked, asked.update)
    if isinstance(asked.update, (SGD, Adam)):
        updates = list(_resized(asked.update, recommended))
    intervals = {"level": level, "resamples": resamples, "seed": seed}
    with Progress(len(updates) + 1, "step sizes", progress) as bar:
        limit = _limit(few)
        bar.advance(1)
        trials = []
        for one in updates:
            trials.append(_trial(replace(few, update=one), limit, intervals))
            bar.advance(1)
    here = trials[updates.index(asked.update)]
    cause = (cause_of_rest(few.respond()) or ROUNDING) if here.verdict == "unknown" else None
    sizes = tuple(step_sizes_of(asked.update))
    return StepCheck(here, tuple(trials), recommended, measures[0].name, few.n, few.m, level, sizes, cause)


def _recommended(asked: Measurement, update: SGD) -> float | None:
    """The step size that `SGD("auto")` takes; None if it finds none."""
    try:
        return replace(asked, update=SGD("auto", update.weight_decay)).with_step_size().update.step_size
    except ValueError as error:
        raise_interruption(error)
        return None


def _few(asked: Measurement) -> Measurement:
    """Some of the sources and targets, evenly spread."""
    device = asked.problem.device
    few = asked.sampled(spread(asked.n, EXAMPLES, device))
    if few.targets is None:
        return few
    columns = spread(asked.m, EXAMPLES, device)
    labels = None if few.target_labels is None else few.target_labels[columns]
    return replace(few, targets=take(few.targets, columns), target_labels=labels)


def _resized(update: SGD | Adam, recommended: float | None) -> Iterator[Update]:
    """The update with the step sizes that are tried."""
    assert not isinstance(update.step_size, str)
    others = {float(f"{share * update.step_size:.2g}") for share in OTHERS}
    sizes = {update.step_size} | {size for size in others if size < torch.finfo(torch.float32).max}
    for size in sorted(sizes | ({recommended} if recommended is not None else set())):
        yield replace(update, step_size=size)


def _limit(measurement: Measurement) -> Response:
    """The linear response; of `SGD` and `Adam` at a fixed step size, which it is in proportion to."""
    if isinstance(measurement.update, (SGD, Adam)):
        measurement = replace(measurement, update=replace(measurement.update, step_size=LIMIT))
    return replace(measurement, engine=Linearized(), refine=False).respond()


def _trial(measurement: Measurement, limit: Response, intervals: dict[str, Any]) -> StepTrial:
    """One step size beside the linear response."""
    response, measure = measurement.respond(), measurement.measures[0]
    noise = response.noise_scale[:, None, None] * response.target_noise
    size = step_sizes_of(measurement.update)[-1]
    share = size / LIMIT if isinstance(measurement.update, (SGD, Adam)) else 1.0
    apart = deviations(response.target_change, share * limit.target_change, noise)
    found = apart.where(are_clear(response.target_change, noise), torch.nan).double().cpu().numpy()
    values, small = (measurement.score(measure, one).values.cpu().numpy() for one in (response, _tiny(limit)))
    ranked = spearman_of_pairs(values, small, square=measurement.square, **intervals)
    apart_by = median_interval(found, **intervals)
    if not apart_by[1] > LARGE and cause_of_rest(response) == TOO_LARGE:  # few changes, if any, have digits
        apart_by = (np.inf, np.inf, np.inf)
    return StepTrial(size, *apart_by, *ranked, unresolved_share(values))


def _tiny(limit: Response) -> Response:
    """The linear response of a tiny step; its noise is in proportion, since nothing was subtracted."""
    names = ("source_change", "target_change", "step_size", "source_noise", "target_noise")
    return replace(limit, **{name: TINY * getattr(limit, name) for name in names})
