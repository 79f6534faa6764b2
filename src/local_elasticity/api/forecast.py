"""forecast: what a fine-tune will break, before it is run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor, nn

from local_elasticity.api.printed import Printed
from local_elasticity.checks import check_count, check_positive
from local_elasticity.engine.causes import NO_STEP, takes_no_step
from local_elasticity.engine.fine_tune import AT_ONCE, FineTune, batches, carries_moments, is_linear
from local_elasticity.engine.guard import untouched
from local_elasticity.engine.inputs import count, read_sources, take
from local_elasticity.engine.job import check_labels, check_network, predictions
from local_elasticity.engine.loss import LossFunction
from local_elasticity.engine.problem import BoundProblem, Inputs, Problem, as_problem, at_weights
from local_elasticity.engine.update import SGD, FromOptimizer, Update, check_update, step_sizes_of
from local_elasticity.extras import extra
from local_elasticity.measurement import Measurement
from local_elasticity.measures.margin import losses, margins
from local_elasticity.measures.registry import as_measures
from local_elasticity.statistics.correlation import spearman
from local_elasticity.statistics.ranking import auroc, auroc_interval
from local_elasticity.words import step_sizes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MAX_VIRTUAL = 5
"""Virtual steps that are taken unless more are allowed."""

VIOLENT = 0.5
"""A step that deviates by more than this share from its limit of small steps is not extrapolated."""

OVERSHOOT = 2.0
"""Nor are steps of some nonlinearity after which the loss of the new examples is this multiple of what it was."""

SOME = 0.1
"""What counts as some nonlinearity of one step."""

FAR = 0.5
"""Above this nonlinearity of all that is extrapolated the forecast says so."""

MANY_TIMES = 2
"""As many times more steps than were looked at, and the forecast says so too where the rule is not linear: gradients
turn while examples are learned, which one step of such a rule does not show. With Adam, ranges from a quarter of the
steps missed the real number in trials."""

COUNTED_TIMES = 5
"""How many times the steps that were looked at may be extrapolated for a count of losses, if a rule is not linear in
the gradient."""

MOST_STEPS = 1_000_000
"""Steps that are walked, in the space of outputs, in a reasonable time."""

NAMED_AT_RISK = 3
"""Examples that the text names."""

GROUPS = 5
"""Groups of equal size, by risk, in which a check compares what was forecast with what happened."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """Some examples before a fine-tune and after it, forecast or real.

    Attributes:
        before, after: outputs, [m, k].
        loss_before, loss_after: the loss of every example, [m].
        margin_before, margin_after: by how much every prediction is right, [m]; at 0 and below it is wrong.
    """

    before: np.ndarray
    after: np.ndarray
    loss_before: np.ndarray
    loss_after: np.ndarray
    margin_before: np.ndarray
    margin_after: np.ndarray

    @property
    def right(self) -> np.ndarray:
        """Which of them were right before."""
        return self.margin_before > 0

    @property
    def lost(self) -> np.ndarray:
        """Which of them were right before and are wrong after."""
        return self.right & ~(self.margin_after > 0)


@dataclass(frozen=True)
class _Examples:
    """Labelled examples, and how their outputs are judged."""

    inputs: Inputs
    labels: Tensor
    problem: Problem
    output_shape: tuple[int, ...]
    drop: float | None

    def outlook(self, before: Tensor, after: Tensor) -> Outlook:
        outputs = [part.reshape(len(part), *self.output_shape) for part in (before, after)]
        loss = [losses(self.problem.loss, part, self.labels).double() for part in outputs]
        if self.drop is None:
            found = [margins(part, self.labels, self.problem.kind) for part in outputs]
            margin = [torch.full_like(loss[0], math.nan) if part is None else part.double() for part in found]
        else:
            margin = [torch.full_like(loss[0], self.drop), self.drop - (loss[1] - loss[0])]
        parts = (before.double(), after.double(), *loss, *margin)
        return Outlook(*(part.detach().cpu().numpy() for part in parts))


@dataclass(frozen=True, eq=False)
class ForecastCheck:
    """A forecast beside what really happened; `forecast.check(model_after)` makes one.

    Attributes:
        auroc: how well `risk` ranks the examples that were lost above those that were kept, 0.5 by chance; over the
            examples that were right before. `low`, `high`: its 95 % interval, examples resampled.
        margin_auroc, loss_auroc: the same for the margin and the loss before, which need no forecast.
        rank_correlation: Spearman's, of forecast and real changes of the outputs, over all old examples and outputs.
        loss_rank_correlation: the same for the changes of the losses.
        slope: real changes of the outputs as a multiple of those forecast, by least squares; 1 where sizes are right.
        lost, forecast_lost, both: how many were lost, were forecast to be, and both; of `right` that were right before.
        calibration: a frame with a row for each fifth of the examples by risk: `examples`, the mean `risk`, the share
            `forecast_lost`, and the share really `lost`.
    """

    auroc: float
    low: float
    high: float
    margin_auroc: float
    loss_auroc: float
    rank_correlation: float
    loss_rank_correlation: float
    slope: float
    lost: int
    forecast_lost: int
    both: int
    right: int
    calibration: pd.DataFrame = field(repr=False)

    def __repr__(self) -> str:
        return (
            f"{self.lost} of {self.right} examples were lost; {self.forecast_lost} were forecast, {self.both} of them "
            f"rightly\n"
            f"AUROC {self.auroc:.3f} (95% interval {self.low:.3f} to {self.high:.3f}); of the margin before "
            f"{self.margin_auroc:.3f}, of the loss before {self.loss_auroc:.3f}\n"
            f"rank correlation of changes: outputs {self.rank_correlation:.2f}, losses "
            f"{self.loss_rank_correlation:.2f}; real changes are {self.slope:.2f} times those forecast"
        )

    @classmethod
    def of(cls, forecast: Outlook, real: Outlook) -> ForecastCheck:
        """Compare two outlooks of the same examples.

        Args:
            forecast: what was forecast.
            real: what happened.

        Returns:
            The check.
        """
        right = forecast.right
        risk, lost = -forecast.margin_after[right], real.lost[right]
        low, high = auroc_interval(risk, lost)
        guessed, true = ((one.after - one.before).ravel() for one in (forecast, real))
        size = float(guessed @ guessed)
        return cls(
            auroc(risk, lost),
            low,
            high,
            auroc(-forecast.margin_before[right], lost),
            auroc(forecast.loss_before[right], lost),
            spearman(guessed, true),
            spearman(forecast.loss_after - forecast.loss_before, real.loss_after - real.loss_before),
            float(guessed @ true) / size if size else math.nan,
            int(lost.sum()),
            int(forecast.lost.sum()),
            int((forecast.lost & real.lost).sum()),
            int(right.sum()),
            _calibration(risk, forecast.lost[right], lost),
        )


def _calibration(risk: np.ndarray, forecast: np.ndarray, lost: np.ndarray) -> pd.DataFrame:
    import pandas as pd

    groups = [rows for rows in np.array_split(np.argsort(risk, kind="stable"), GROUPS) if len(rows)]
    table = [(len(rows), risk[rows].mean(), forecast[rows].mean(), lost[rows].mean()) for rows in groups]
    return pd.DataFrame(table, columns=["examples", "risk", "forecast_lost", "lost"])


@dataclass(frozen=True, eq=False, repr=False)
class Forecast(Printed):
    """What a fine-tune on new examples will do to old ones; build one with `le.forecast`.

    Attributes:
        old, new: the examples before and as forecast: outputs, losses, margins.
        update, steps, batch_size, virtual: the fine-tune, and how many of its steps were really taken, in a copy.
        nonlinearity: how far the first step that is extrapolated is from its limit of small steps, ‖R − JΔ‖ / ‖JΔ‖ at a
            few old examples; NaN where nothing is extrapolated or it is not known. `total_nonlinearity`: the same for
            the whole displacement that is extrapolated.
        seconds: what the forecast took.
        simulated: the same with every step taken, where `simulate=True` asked for it; else None.
        notes: what to know about it, in words.
    """

    old: Outlook
    new: Outlook
    update: Update
    steps: int
    batch_size: int | None
    virtual: int
    nonlinearity: float
    total_nonlinearity: float
    seconds: float
    simulated: Forecast | None = None
    notes: tuple[str, ...] = ()
    _examples: _Examples | None = field(default=None, repr=False)

    @cached_property
    def risk(self) -> np.ndarray:
        """−(forecast margin) of every old example: larger is likelier to be lost; NaN where it was wrong before."""
        return np.where(self.old.right, -self.old.margin_after, np.nan)

    @property
    def sizes_known(self) -> bool:
        """Whether changes are forecast in size, and so which examples are lost. Steps of a rule that is not linear in
        the gradient, as Adam's, are extrapolated at most fivefold; beyond that only the order of risks is forecast."""
        return is_linear(self.update) or self.steps <= COUNTED_TIMES * max(self.virtual, 1)

    @property
    def deviation(self) -> float:
        """By about which share the changes that are forecast are wrong: the `total_nonlinearity`; 0 where every step is
        taken. NaN where it is not known: the network has no derivative, or the rule is not linear in the gradient, as
        Adam, and more than five times as many steps are extrapolated as were looked at."""
        if self.virtual >= self.steps:
            return 0.0
        return self.total_nonlinearity if _sizes_hold(self.update, self.steps, self.virtual) else math.nan

    @cached_property
    def probability(self) -> np.ndarray:
        """How likely every old example is to be lost: Φ(−margin/σ) of the forecast margin, with σ the `deviation` times
        the root mean square of the changes of margins. NaN where it was wrong before, or where that is not known."""
        old = self.old
        changes = (old.margin_after - old.margin_before)[old.right]
        spread = self.deviation * float(np.sqrt(np.mean(changes**2))) if len(changes) else math.nan
        if spread == 0:
            return np.where(old.right, old.lost.astype(float), np.nan)
        return ndtr(self.risk / spread)

    @cached_property
    def lost_range(self) -> tuple[int, int] | None:
        """How many will be lost if all changes of margins are smaller, or larger, than forecast by the `deviation`;
        None where that is not known."""
        if math.isnan(self.deviation):
            return None
        before, after = (part[self.old.right] for part in (self.old.margin_before, self.old.margin_after))
        moved = (before + (1 + off) * (after - before) for off in (-self.deviation, self.deviation))
        low, high = sorted(int((margin <= 0).sum()) for margin in moved)
        return low, high

    def frame(self) -> pd.DataFrame:
        """One row for each old example, in the order given.

        Returns:
            A frame with `example`, `label` where labels are one number each, `loss_before`, `loss_forecast`,
            `margin_before`, `margin_forecast`, `wrong_before`, `risk`, `probability`, `lost`; with `simulate=True`
            also `margin_simulated` and `lost_simulated`. `lost` is NaN where sizes are not known (`sizes_known`).
        """
        import pandas as pd

        old = self.old
        columns: dict[str, Any] = {"example": np.arange(len(old.right))}
        if self._examples is not None and self._examples.labels.ndim == 1:
            columns["label"] = self._examples.labels.cpu().numpy()
        columns |= {
            "loss_before": old.loss_before,
            "loss_forecast": old.loss_after,
            "margin_before": old.margin_before,
            "margin_forecast": old.margin_after,
            "wrong_before": ~old.right,
            "risk": self.risk,
            "probability": self.probability,
            "lost": old.lost if self.sizes_known else np.full(len(old.right), np.nan),
        }
        if self.simulated is not None:
            columns |= {"margin_simulated": self.simulated.old.margin_after, "lost_simulated": self.simulated.old.lost}
        return pd.DataFrame(columns)

    def at_risk(self, k: int) -> np.ndarray:
        """The k old examples with the largest risk, for replay; those that were wrong before are left out.

        Args:
            k: how many; all that were right where there are fewer.

        Returns:
            Their positions, the largest risk first: `x[forecast.at_risk(20)]`.
        """
        check_count("k", k)
        order = np.argsort(-self.risk, kind="stable")  # NaN comes last
        return order[: min(k, int(self.old.right.sum()))]

    @untouched
    def check(self, model_after: nn.Module | Problem | Mapping[str, Tensor]) -> ForecastCheck:
        """Compare the forecast with the model after the fine-tune.

        Args:
            model_after: the model, the problem, or the weights by name, after the fine-tune. It may be the same model,
                trained in place: the predictions before are kept.

        Returns:
            AUROC, rank correlations and calibration; it prints as three sentences.

        Raises:
            ValueError, TypeError: if it is none of these, does not take the old examples, or lacks weights that step.
        """
        assert self._examples is not None
        problem = _problem_after(self._examples.problem, model_after)
        with problem.bound() as bound:
            check_network(bound, self._examples.inputs, None, ("model_after",))
            after = predictions(bound, bound.params, self._examples.inputs, AT_ONCE)
        before = torch.from_numpy(self.old.before).to(after)
        if after.shape != before.shape:
            raise ValueError(
                f"model_after: it gives {after.shape[1]} outputs for each example, the model before {before.shape[1]}"
            )
        return ForecastCheck.of(self.old, self._examples.outlook(before, after))

    def plot(self, columns: int = 1) -> Figure:
        """Margins before and as forecast, one dot for each old example; below the line at 0 it is lost.

        Args:
            columns: as wide as one column of print, or two.

        Returns:
            A matplotlib figure.
        """
        with extra("report"):
            from local_elasticity.report.figures import forecast_figure

        return forecast_figure(self.old.margin_before, self.old.margin_after, self.old.right, columns)

    def sentences(self, *, named: bool = True) -> list[str]:
        """What is forecast, and how far to trust it.

        Args:
            named: whether to name the examples most at risk, by position.

        Returns:
            One sentence each.
        """
        old, new = self.old, self.new
        right, m, n = int(old.right.sum()), len(old.right), len(new.right)
        size = "all new examples" if self.batch_size is None else f"batches of {self.batch_size}"
        kept = f"{int(old.lost.sum())} of {right} right examples will be lost{self._range()}"
        after = f"{int((new.margin_after > 0).sum())} of {n} right after, "
        if not self.sizes_known:
            kept = f"{right} examples are right now; how many will be lost is not forecast"
            after = f"{n} examples, "
        kept += f"; {m - right} of {m} are wrong already" if right < m else ""
        told = [
            f"Forecast of {self.steps} steps on {size} ({_named(self.update)}), {self._way()}: {self.seconds:.2g} s",
            f"old: {kept}" if right else f"old: all {m} are wrong already, so that none can be lost",
            f"new: {after}{int(new.right.sum())} {'before' if self.sizes_known else 'right now'}",
        ]
        if right and named:
            worst = [
                f"{i} ({old.margin_before[i]:.2g} → {old.margin_after[i]:.2g})" for i in self.at_risk(NAMED_AT_RISK)
            ]
            worst = worst if self.sizes_known else [str(i) for i in self.at_risk(NAMED_AT_RISK)]
            margins = " (margin before → forecast)" if self.sizes_known else ""
            told.append(f"most at risk{margins}: {', '.join(worst)}")
        if self.simulated is not None:
            found = ForecastCheck.of(old, self.simulated.old)
            told.append(
                f"simulated, all steps: {found.lost} lost, {found.both} of them forecast, AUROC {found.auroc:.3f}: "
                f"{self.simulated.seconds:.2g} s"
            )
        return [*told, *self.notes]

    def _range(self) -> str:
        if self.lost_range is None or self.virtual >= self.steps:
            return ""
        return f" ({self.lost_range[0]} to {self.lost_range[1]} if changes are off by {self.deviation:.0%})"

    def _way(self) -> str:
        if self.virtual >= self.steps:
            return "every step taken in a copy"
        return f"from {self.virtual} virtual steps" if self.virtual else "from single steps"


@untouched
def forecast(
    problem: Problem | nn.Module,
    new: Any,
    old: Any,
    *,
    steps: int,
    update: Update,
    loss: str | LossFunction | None = None,
    batch_size: int | None = None,
    virtual: int = 0,
    max_virtual: int = MAX_VIRTUAL,
    simulate: bool = False,
    drop: float | None = None,
) -> Forecast:
    """What fine-tuning on new examples will do to old ones: which of those that are right will be lost.

    The steps are extrapolated as the linearized network takes them, from the responses of the new examples to steps on
    each other. Their loss gradients fade and turn as they are learned, which a few directions of these follow; rules
    other than SGD keep one. Old examples are then read once, at the weights displaced so. The first `virtual` steps are
    really taken, in a copy. The model, the optimizer and random states stay as they are. Batch-norm statistics are
    frozen and dropout is off, as in every measurement.

    Args:
        problem, loss: a `le.Problem`, or a model with `loss=`.
        new: (inputs, labels) to fine-tune on, a Dataset or a DataLoader.
        old: (inputs, labels) to keep; those that are wrong already are counted apart.
        steps: how many steps the fine-tune will take.
        update: its rule: `le.SGD`, `le.Adam` (which begins fresh, and keeps its moments from step to step), or
            `le.FromOptimizer(optimizer)` for any other, from its present state.
        batch_size: examples in a step, taken in the order given, over and over; None for all of them.
        virtual: steps that are really taken, in a copy, before the rest is extrapolated; at most `max_virtual`. Each
            costs a training step. With `virtual=steps` nothing is extrapolated.
        max_virtual: the most that `virtual` may be.
        simulate: whether to take all steps as well, for comparison: `forecast.simulated`, with the seconds it took.
        drop: call an example lost where its loss rises by more than this, instead of where its prediction becomes
            wrong. Outputs that are plain numbers, as of a language model's log-probability, need it.

    Returns:
        A `Forecast`: `.frame()`, `.at_risk(k)`, `.plot()`, `.check(model_after)`; printed, it says what will be lost.

    Raises:
        ValueError, TypeError: what is wrong with an argument, such as an optimizer whose learning rate is 0; or that
            one step changes the network so much that nothing can be extrapolated from it.

    >>> import torch, local_elasticity as le
    >>> _ = torch.manual_seed(0)
    >>> x, net = torch.randn(40, 5), torch.nn.Linear(5, 3)
    >>> y = net(x).argmax(1)
    >>> new = x[:4], (y[:4] + 1) % 3
    >>> found = le.forecast(net, new, (x[4:], y[4:]), loss="cross_entropy", update=le.SGD(0.1), steps=10)
    >>> int(found.frame()["lost"].sum()), len(found.at_risk(5))
    (16, 5)
    """
    problem = as_problem(problem, loss)
    _check_options(update, steps, batch_size, virtual, max_virtual, drop)
    problem.check()
    place = problem.device, problem.precision
    new, old = (read_sources(given, *place, name) for given, name in ((new, "new"), (old, "old")))
    if isinstance(update, SGD) and update.automatic:
        update = Measurement.read(problem, new, old, measures=as_measures("loss"), update=update).update
    with problem.bound() as bound:
        outputs, _, _ = check_network(bound, new[0], old[0], ("new", "old"))
        for (_, labels), name in ((new, "new"), (old, "old")):
            check_labels(bound, labels, outputs, name)
        if drop is None and margins(outputs.detach(), old[1][:1], problem.kind) is None:
            raise ValueError(
                "drop: the outputs decide for no class, so none is right or wrong; pass drop=0.5 to call an example "
                "lost where its loss rises by more than that"
            )
        question = _Question(problem, bound, new, old, update, steps, batch_size, tuple(outputs.shape[1:]), drop)
        found = question.answer(virtual)
        return replace(found, simulated=question.answer(steps)) if simulate else found


@dataclass(frozen=True)
class _Question:
    """A fine-tune to forecast, read and checked."""

    problem: Problem
    bound: BoundProblem
    new: tuple[Inputs, Tensor]
    old: tuple[Inputs, Tensor]
    update: Update
    steps: int
    batch_size: int | None
    output_shape: tuple[int, ...]
    drop: float | None

    def answer(self, virtual: int) -> Forecast:
        """The forecast after so many virtual steps."""
        began = time.perf_counter()
        virtual = min(virtual, self.steps)
        inputs, labels = self.new
        plan = batches(count(inputs), self.batch_size, self.steps)
        tune = FineTune(self.bound, self.update, self.output_shape)
        before = [tune.predict(part) for part, _ in (self.old, self.new)]
        for rows in plan[:virtual]:
            tune.step(take(inputs, rows), labels[rows])
        moved, one, total = None, math.nan, math.nan
        if virtual < self.steps:
            rows = plan[virtual]
            one = tune.nonlinearity(self.old[0], tune.displacement(take(inputs, rows), labels[rows]))
            if one > VIOLENT:
                off = f"{one:.0%}" if one < 100 else "more than 10,000%"
                raise ValueError(self._refusal(f"one step is {off} away from its limit of small steps"))
            moved = tune.extrapolated(inputs, labels, plan[virtual:])
            total = tune.nonlinearity(self.old[0], moved)
        after = [tune.predict(part, moved) for part, _ in (self.old, self.new)]
        if not all(bool(part.isfinite().all()) for part in after):
            raise ValueError(
                "update: predictions become infinite or NaN on the way, so that there is nothing to forecast; take a "
                "smaller step size"
            )
        examples = [_Examples(*pair, self.problem, self.output_shape, self.drop) for pair in (self.old, self.new)]
        old, new = (of.outlook(f, g) for of, f, g in zip(examples, before, after, strict=True))
        rises = new.loss_before.mean(), new.loss_after.mean()
        if one > SOME and rises[1] > OVERSHOOT * rises[0]:
            rise = f"from {rises[0]:.2g} to {rises[1]:.2g}"
            raise ValueError(self._refusal(f"the steps overshoot, and the loss of the new examples would rise {rise}"))
        return Forecast(
            old,
            new,
            self.update,
            self.steps,
            self.batch_size,
            virtual,
            one,
            total,
            time.perf_counter() - began,
            notes=self._notes(virtual, total),
            _examples=examples[0],
        )

    def _refusal(self, why: str) -> str:
        return (
            f"update: the step is too large for a forecast: {why}. Take a smaller step size, or take "
            "every step in a copy: virtual=steps, max_virtual=steps"
        )

    def _notes(self, virtual: int, total: float) -> tuple[str, ...]:
        found = []
        if total > FAR:
            found.append(
                f"what is extrapolated deviates by {total:.0%} from small steps: trust the ranking more than the "
                "sizes, or take more virtual steps"
            )
        elif not _sizes_hold(self.update, self.steps, virtual):
            every = f"take them all in a copy: virtual={self.steps}, max_virtual={self.steps}"
            found.append(
                f"{self.steps - virtual} steps are extrapolated from {max(virtual, 1)}, but steps of this optimizer do "
                f"not shrink with the gradient: trust the ranking more than the sizes, or {every}"
            )
        if virtual < self.steps and carries_moments(self.update) and not is_linear(self.update):
            found.append(
                "the optimizer carries moments of earlier steps, which fade in the fine-tune but not in what is "
                "extrapolated; more virtual steps let them fade"
            )
        return tuple(found)


def _sizes_hold(update: Update, steps: int, virtual: int) -> bool:
    """Whether so many steps can be extrapolated in size, and not only in direction."""
    return is_linear(update) or steps <= MANY_TIMES * max(virtual, 1)


def _check_options(update: Any, steps: Any, batch_size: Any, virtual: Any, max_virtual: Any, drop: Any) -> None:
    check_update(update)
    if takes_no_step(update):
        raise ValueError(f"update: {NO_STEP}")
    if isinstance(update, FromOptimizer) and update.drift != "keep":
        raise ValueError('update: a fine-tune takes whole steps, drift included; pass FromOptimizer with drift="keep"')
    check_count("steps", steps)
    if steps > MOST_STEPS:
        raise ValueError(f"steps: expected at most {MOST_STEPS:,}, got {steps:,}; forecast a part of them")
    check_count("virtual", virtual, least=0)
    check_count("max_virtual", max_virtual, least=0)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    if virtual > max_virtual:
        raise ValueError(
            f"virtual: expected at most {max_virtual}, got {virtual}; each is a training step. Allow more with "
            "max_virtual=, or compare with all steps by simulate=True"
        )
    if drop is not None:
        check_positive("drop", drop)


def _problem_after(problem: Problem, model_after: Any) -> Problem:
    if isinstance(model_after, Problem):
        return model_after
    if isinstance(model_after, nn.Module):
        made = Problem.of(
            model_after, problem.loss, output=problem.output, params=".*", mode=problem.mode, kind=problem.kind
        )
        return made if problem.dtype is None else made.to(problem.dtype)
    if isinstance(model_after, Mapping):
        return at_weights(problem, model_after, problem.stepped, "model_after")
    raise TypeError(
        f"model_after: expected the model after the fine-tune, or its weights by name, got {type(model_after).__name__}"
    )


def _named(update: Update) -> str:
    """An update in a few words; the repr of an optimizer has many lines."""
    if isinstance(update, FromOptimizer):
        return f"{type(update.optimizer).__name__}, {step_sizes(step_sizes_of(update))}"
    return repr(update)
