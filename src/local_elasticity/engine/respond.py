"""respond: one update on each source, read at all targets. What most of this package is built on.

`auto` chooses an exact engine (`choose.py`), and refines: rows that rounding hides in the model's precision are
computed again in float64, and those that it hides there too by differences, which avoid subtraction.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from local_elasticity.engine.choose import (
    UNSUPPORTED,
    Choice,
    Race,
    choose,
    dismiss,
    known,
    name_of,
    remember,
    timed,
    turn,
)
from local_elasticity.engine.drift import DriftlessRunner, without_drift
from local_elasticity.engine.guard import interruption, untouched
from local_elasticity.engine.job import Engine, Job, Runner
from local_elasticity.engine.linearized import Linearized
from local_elasticity.engine.looped import Looped
from local_elasticity.engine.loss import LossFunction, check_probabilities
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.near_ties import near_ties
from local_elasticity.engine.noise import RESOLVED, Noise, not_rounded, resolved_rows
from local_elasticity.engine.nonlinearity import ALLOWED, nonlinearity_of, sampled
from local_elasticity.engine.predicted import with_predicted_labels
from local_elasticity.engine.problem import Problem, as_problem
from local_elasticity.engine.progress import Progress, ProgressOption
from local_elasticity.engine.response import Response
from local_elasticity.engine.rows import Rows, collect
from local_elasticity.engine.structured import LimitRunner, Structured, differences_runner
from local_elasticity.engine.supported import first_line
from local_elasticity.engine.update import DEFAULT_UPDATE, SGD, Update
from local_elasticity.engine.vmapped import Vmapped

logger = logging.getLogger("local_elasticity")

ENGINES: dict[str, type] = {
    "looped": Looped,
    "vmapped": Vmapped,
    "structured": Structured,
    "linearized": Linearized,
}

SCOUTS = 8
"""If none of this many first rows is resolved, the others are not tried in the low precision."""

SMALL = 1000
"""A step is small if it changes the source's outputs by less than this many times their rounding."""


def respond(
    problem: Problem | nn.Module,
    sources: Any,
    targets: Any = None,
    *,
    loss: str | LossFunction | None = None,
    update: Update = DEFAULT_UPDATE,
    engine: str | Engine = "auto",
    approximate: bool = False,
    labels: str = "given",
    source_batch_size: int | None = None,
    memory: int | None = None,
    progress: ProgressOption = None,
) -> Response:
    """How one update on each source would move the prediction at every target. The model is not touched.

    For source i, w⁺ = w + update(∇_w ℓ(f(x_i; w), y_i)); the response holds f(x′; w⁺) − f(x′; w) for every target x′
    and the same at x_i itself (He & Su eq. 2.1, 2.2).

    Args:
        problem: the network and its loss, from `Problem.of`; or a bare `nn.Module` together with `loss=`.
        sources: (inputs, labels), or a Dataset or DataLoader of such pairs.
        targets: (inputs, labels), inputs alone, a Dataset or a DataLoader; by default the sources themselves. Targets
            of a model with several inputs are ((a, b), None) or a dict.
        loss: the loss of a bare model, as for `Problem.of`.
        update: `SGD`, `Adam` or `FromOptimizer`.
        engine: `"auto"` (exact, chosen by a short measurement; rows that rounding hides are computed again in
            float64), `"looped"`, `"vmapped"`, `"structured"`, `"linearized"`, or an engine object.
        approximate: let `auto` answer to first order in the step (`Linearized`).
        labels: `"given"`, or `"predicted"` for sources that are inputs alone: the classes that the model predicts now.
        source_batch_size: take one step on each consecutive batch of this many sources instead of on each source.
        memory: bytes that may be used beyond the result itself; by default half of what is free.
        progress: None for a bar on a terminal and log lines elsewhere, True for lines on stderr instead of those, False
            for none, or a function (done, total).

    Returns:
        A `Response`, from which every measure of a response is computed.

    Raises:
        ValueError, TypeError: what is wrong with an argument; the message begins with its name.
        MemoryError: one source and one target at a time do not fit.

    >>> import torch, local_elasticity as le
    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> x, y = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([3.0, 5.0])
    >>> response = le.respond(net, sources=(x, y), loss="half_mse", update=le.SGD(0.1))
    >>> le.relative(response)  # a linear model: |x·x′| / ‖x‖²
    tensor([[1.0000, 1.0000],
            [0.5000, 1.0000]])
    """
    chosen, problem = resolve_engine(engine, approximate), as_problem(problem, loss)
    sources, targets = with_predicted_labels(problem, sources, targets, labels)
    return response_of(
        problem,
        sources,
        targets,
        update=update,
        engine=chosen,
        refine=chosen is None,
        source_batch_size=source_batch_size,
        memory=memory,
        progress=progress,
    )


@untouched
def response_of(
    problem: Problem,
    sources: Any,
    targets: Any,
    *,
    update: Update,
    engine: Engine | None,
    refine: bool,
    source_batch_size: int | None = None,
    memory: int | None = None,
    progress: ProgressOption = None,
    check_targets: bool = False,
    nonlinearity: bool = True,
) -> Response:
    """The response by an engine, or by the one that is chosen where it is None; with `refine`, rows that rounding hides
    are computed again, and an engine that cannot take the model is replaced. With `check_targets`, the loss must take
    the labels of the targets. `nonlinearity` says whether to look at it."""
    with problem.bound() as bound:
        job = Job.read(
            bound,
            sources,
            targets,
            update,
            source_batch_size=source_batch_size,
            memory=memory,
            check_targets=check_targets,
        )
        job = replace(job, sampled=sampled(job)) if nonlinearity else job
        with Progress(job.n, "updates", progress) as bar:
            if refine or engine is None:
                response = _auto(job, engine, bar)
            else:
                runner = _runner(job, engine.runner)
                rows = collect(job, runner, Rows.empty(job), bar.advance)
                noise = _noise(runner)
                response = as_response(job, rows, noise, runner, name_of(engine), runner.notes, exact=engine.exact)
                response = _without_near_ties(job, engine, runner, noise, rows, response, bar)
        if not job.removes_drift:
            job.check_company(response.target_before)
        if problem.loss_name == "bce":
            check_probabilities(response.source_before)
        chosen = _chosen_step(update, job.update)
        found = nonlinearity_of(job, response) if nonlinearity else math.nan
        of_loss = bound.notes()
    notes = (*problem.notes(), *of_loss, *chosen, *response.notes, *_overflows(response))
    return replace(response, notes=notes, nonlinearity=found)


def _runner(job: Job, make: Callable[[Job], Runner]) -> Runner:
    """The runner that `make` creates for a job; if requested, the drift is subtracted from its rows."""
    return without_drift(job, make) if job.removes_drift else make(job)


def _noise(runner: Runner) -> Noise:
    return runner.noise() if isinstance(runner, DriftlessRunner) else Noise.measure(runner.job, runner)


def _chosen_step(asked: Update, taken: Update) -> list[str]:
    """The note about a step size that was chosen automatically."""
    if not (isinstance(asked, SGD) and asked.automatic):
        return []
    return [
        f"auto: the step size is {taken.step_size:g}, the largest that deviates by at most {ALLOWED:.0%} from the "
        "limit of small steps, at nine in ten of the pairs that were tried"
    ]


def resolve_engine(engine: str | Engine, approximate: bool) -> Engine | None:
    """An engine object from a name or an object; None for `auto`."""
    if isinstance(engine, str):
        if engine != "auto" and engine not in ENGINES:
            raise ValueError(f"engine: {engine!r} is not one of auto, {', '.join(ENGINES)}")
        if engine == "auto":
            return Linearized() if approximate else None
        engine = ENGINES[engine]()
    if isinstance(engine, type) or not isinstance(engine, Engine):
        raise TypeError(f"engine: expected a name or an engine such as le.Looped(), got {engine!r}")
    return engine


def _overflows(response: Response) -> list[str]:
    """Notes about predictions that are not finite, before or after the step."""
    known = [rows.isfinite().flatten(1).all(1) for rows in (response.source_change, response.target_before)]
    pairs = ~response.target_change.isfinite().flatten(2).all(2) & known[0][:, None] & known[1]
    sources, targets, others = torch.stack([(~known[0]).sum(), (~known[1]).sum(), pairs.sum()]).tolist()
    what = [f"{count} of the {name}" for count, name in ((sources, "sources"), (targets, "targets")) if count]
    said = [f"predictions are not finite at {' and '.join(what)}; their pairs are NaN"] if what else []
    return said + ([f"{others} other pairs are NaN: their predictions are not finite after the step"] if others else [])


def _auto(job: Job, engine: Engine | None, bar: Progress) -> Response:
    """By the engine that was chosen before, if it still supports the model; else by the winner of a race."""
    notes: list[str] = []
    choice = _known(job, notes) if engine is None else Choice(engine, "")
    if choice is not None:
        try:
            runner = choice.runner or _runner(job, choice.engine.runner)
            said = [choice.reason] if choice.reason else []
            with timed(job, choice):
                return _refined(job, choice.engine, runner, cache(lambda: _noise(runner)), said, bar)
        except UNSUPPORTED as error:
            if not may_be_passed_over(error) or _takes_any_network(choice.engine):
                raise
            bar.done = 0
            if choice.rival is not None:
                dismiss(job, choice, error)
                return _auto(job, None, bar)
            what = f"{name_of(choice.engine)}, as chosen before, cannot take the model as it is now"
            notes.append(f"auto: {what} ({first_line(error)})")
            if job.removes_drift:
                return _auto(job, Looped(), bar)
    race = Race(job, bar.advance)
    noise = Noise.measure(job, race.best.runner)
    looped_runner = race.best.runner
    best = race.run(
        _hopeless(job, looped_runner, lambda: noise),
        lambda rows: float((~clear_rows(job, looped_runner, noise, rows)).double().mean()),
    )
    notes += race.notes
    try:
        return _refined(job, best.engine, best.runner, lambda: noise, notes, bar, rows=race.rows, chunk=best.chunk)
    except UNSUPPORTED as error:
        if not may_be_passed_over(error) or _takes_any_network(best.engine):
            raise
        notes.append(f"auto: {name_of(best.engine)} cannot take a later source ({first_line(error)}); looped instead")
    bar.done, looped = 0, Looped()
    remember(job, Choice(looped, notes[-1]))
    return _refined(job, looped, looped.runner(job), lambda: noise, notes, bar)


def _takes_any_network(engine: Engine) -> bool:
    """Whether no other engine takes what this one does not: the loop, but for its layout of images."""
    return isinstance(engine, Looped) and not engine.channels_last


def _known(job: Job, notes: list[str]) -> Choice | None:
    """The engine that was chosen before. Rows of a race have the drift in them, so that they are not kept where it is
    to be removed."""
    if job.removes_drift:
        return choose(job)
    found = known(job, notes)
    return None if found is None else turn(found)


def _refined(
    job: Job,
    engine: Engine,
    runner: Runner,
    measured: Callable[[], Noise],
    notes: Sequence[str],
    bar: Progress,
    *,
    rows: Rows | None = None,
    chunk: int | None = None,
) -> Response:
    """All rows; those whose change is not clear of the noise again in float64, or without subtraction. The noise is
    asked for late: its many small kernels are prepared while a GPU computes the rows."""
    in_float64 = job.bound.dtype == torch.float64
    rows = Rows.empty(job) if rows is None else rows
    collect(job, runner, rows, bar.advance, chunk=chunk, enough=_hopeless(job, runner, measured))
    noise = measured()
    hidden = torch.ones(job.n, dtype=torch.bool, device=job.bound.device)
    hidden[: rows.done] = ~clear_rows(job, runner, noise, rows) | _near_ties(job, runner, noise, rows)
    again = torch.nonzero(hidden).flatten()
    if in_float64 or not len(again):
        response = as_response(job, rows, noise, runner, name_of(engine), tuple(notes))
        return _by_differences(job, noise, response, again, bar) if bool(rows.subtracted.any()) else response
    try:
        better = _in_float64(job, engine, runner, noise, again, bar)
    except (RuntimeError, TypeError) as error:
        if interruption(error):
            raise
        collect(job, runner, rows, bar.advance, chunk=chunk)
        count = int((~clear_rows(job, runner, noise, rows)).sum())
        note = f"{count} rows are below the noise of {_name(job)}, and float64 is not possible here ({error})"
        logger.warning(note)
        return as_response(job, rows, noise, runner, name_of(engine), (*notes, note))
    response = as_response(job, rows, noise, runner, name_of(engine), tuple(notes))
    return _merged(response, better, again)


def _hopeless(job: Job, runner: Runner, measured: Callable[[], Noise]) -> Callable[[Rows], bool]:
    """Whether none of the first rows is above the noise, provided that a higher precision is available."""

    def hopeless(rows: Rows) -> bool:
        if job.bound.dtype == torch.float64:
            return False
        return SCOUTS <= rows.done < 2 * SCOUTS <= job.n and not clear_rows(job, runner, measured(), rows).any()

    return hopeless


def clear_rows(job: Job, runner: Runner, noise: Noise, rows: Rows) -> Tensor:
    """Which of the rows so far are clear of the noise."""
    rows = rows.first()
    before, own = noise.source_before[: rows.done], noise.of_rows(rows)
    at_targets = runner.target_before, noise.target, rows.subtracted
    return resolved_rows(job.kind, before, rows.source_change, own, *at_targets)


def _near_ties(job: Job, runner: Runner, noise: Noise, rows: Rows) -> Tensor:
    """Which of the rows so far rounding may decide, though nothing was subtracted: the step moves units about as far as
    these are rounded, and there are targets with a unit near a tie, or the source has one."""
    own = rows.first().source_change.flatten(1)
    small = own.norm(dim=1) < SMALL * noise.outputs * own.shape[1] ** 0.5
    if runner.subtracts or not bool(small.any()):
        return torch.zeros_like(small)
    at_targets, at_sources = near_ties(job)
    return small if bool(at_targets.any()) else small & at_sources[: len(small)]


def _without_near_ties(
    job: Job, engine: Engine, runner: Runner, noise: Noise, rows: Rows, response: Response, bar: Progress
) -> Response:
    """The response of an engine that was asked for, with rows in float64 that look resolved, but that rounding may
    decide; NaN where that is not possible."""
    again = torch.nonzero(_near_ties(job, runner, noise, rows) & clear_rows(job, runner, noise, rows)).flatten()
    if not len(again):
        return response
    try:
        return _merged(response, _in_float64(job, engine, runner, noise, again, bar), again)
    except (RuntimeError, TypeError) as error:
        if interruption(error):
            raise
        response.target_change[again] = torch.nan
        note = f"rounding may decide {len(again)} rows, and float64 is not possible here ({error})"
        return replace(response, notes=(*response.notes, note))


def _maker(engine: Engine, runner: Runner) -> Callable[[Job], Runner]:
    """What makes the runner of rows that are computed again: by differences where those took less time than Jacobians,
    which take a backward pass for each output."""
    inner = runner.runner if isinstance(runner, DriftlessRunner) else runner
    return LimitRunner if isinstance(inner, LimitRunner) else engine.runner


def _in_float64(job: Job, engine: Engine, coarse: Runner, noise: Noise, rows: Tensor, bar: Progress) -> Response:
    """Some rows of the `coarse` runner again in float64; a RuntimeError or TypeError if the network does not take
    that."""
    with job.bound.problem.to(torch.float64).bound() as bound:
        higher = job.again(bound, rows)
        inside = higher.rounding_inside()
        bar.total += len(rows) - (bar.total - bar.done)
        runner, finer = _runner(higher, _maker(engine, coarse)), noise.again(rows, torch.float64, inside)
        fitting = max(1, higher.memory // higher.footprint.forward())
        before = higher.predict(bound.params, higher.examples(), fitting).reshape(finer.source_before.shape)
        before = before + runner.at_sources if isinstance(runner, DriftlessRunner) else before
        finer = replace(finer, source_before=before)
        found = collect(higher, runner, Rows.empty(higher), bar.advance)
        note = f"{len(rows)} of {job.n} rows are below the noise of {_name(job)} and were computed again in float64"
        if inside:
            note += ", but the forward pass itself rounds to fewer digits than that"
        logger.info(note)
        better = as_response(higher, found, finer, runner, name_of(engine), (note,))
        hidden = torch.nonzero(~clear_rows(higher, runner, finer, found)).flatten()
        return _by_differences(higher, finer, better, hidden, bar) if runner.subtracts else better


def _by_differences(job: Job, noise: Noise, response: Response, rows: Tensor, bar: Progress) -> Response:
    """Rows that the rounding of two predictions hides, computed again without subtraction; unchanged if `Structured`
    does not support the model."""
    if not len(rows):
        return response
    few, finer = job.again(job.bound, rows), noise.again(rows, job.bound.dtype)
    bar.total += len(rows)
    try:
        runner = _runner(few, differences_runner)
        found = collect(few, runner, Rows.empty(few), bar.advance)
    except (*UNSUPPORTED, MemoryError) as error:
        if interruption(error):
            raise
        logger.info("%d rows stay hidden by rounding (%s)", len(rows), error)
        bar.total -= len(rows)
        return response
    note = f"{len(rows)} rows are below the noise of float64 and were computed again by differences (structured)"
    logger.info(note)
    return _merged(response, as_response(few, found, finer, runner, "structured", (note,)), rows)


def _merged(response: Response, better: Response, rows: Tensor) -> Response:
    """The rows of `better` put in place, and its predictions before the step; the tensors are still this measurement's
    own. Where float32 rounds outputs so much that their distribution changes, all is in float64."""
    predictions = response.target_before, response.source_before
    if not all(bool(not_rounded(response.kind, one).all()) for one in predictions):
        response = response.double()
    assert response.loss_gradient is not None
    assert better.loss_gradient is not None
    quieter = better.target_noise.norm() / response.target_noise.norm().clamp_min(torch.finfo(torch.float32).tiny)
    dtype = response.target_change.dtype
    response.target_change[rows] = better.target_change.to(dtype)
    response.source_change[rows] = better.source_change.to(dtype)
    if response.targets_are_sources:
        response.source_change[rows] = response.target_change[rows, rows]
    response.loss_gradient[rows] = better.loss_gradient.to(dtype)
    response.source_noise[rows] = better.source_noise.to(dtype).clamp_min(torch.finfo(dtype).tiny ** 0.5 / RESOLVED)
    response.noise_scale[rows] = (quieter * better.noise_scale).to(dtype)
    before, rounding = better.target_before.to(dtype), better.target_rounding.to(dtype)
    response = replace(response, target_before=before, target_rounding=rounding, notes=(*response.notes, *better.notes))
    if response.targets_are_sources:
        return replace(response, source_before=before, source_rounding=rounding)
    response.source_before[rows] = better.source_before.to(dtype)
    response.source_rounding[rows] = better.source_rounding.to(dtype)
    return response


def as_response(
    job: Job, rows: Rows, noise: Noise, runner: Runner, name: str, notes: tuple[str, ...], *, exact: bool = True
) -> Response:
    """The labelled whole: predictions, changes, noise and how they came about."""
    dtype = torch.float64 if job.bound.dtype == torch.float64 else torch.float32

    def shaped(source: Tensor) -> Tensor:
        return (source if job.minibatches else source.flatten(0, 1)).to(dtype)

    return Response(
        source_before=shaped(noise.source_before),
        target_before=runner.target_before.to(dtype),
        source_change=shaped(rows.source_change),
        target_change=rows.target_change.to(dtype),
        loss_gradient=shaped(rows.loss_gradient),
        step_size=torch.full((job.n,), job.update.step_size, dtype=dtype, device=job.bound.device),
        source_noise=shaped(noise.of_rows(rows)),
        target_noise=noise.target.to(dtype),
        noise_scale=rows.subtracted.to(dtype),
        source_rounding=shaped(noise.source.clamp_min(noise.outputs)),
        target_rounding=noise.target.clamp_min(noise.outputs).to(dtype),
        kind=job.kind,
        update=job.update,
        engine=name,
        policy=job.bound.problem.policy,
        targets_are_sources=job.targets_are_sources,
        notes=(*notes, *noise.notes),
        source_labels=job.source_labels if job.minibatches else job.source_labels.flatten(0, 1),
        target_labels=job.target_labels,
        loss=job.bound.loss_function,
        output_shape=job.output_shape,
        exact=exact,
    )


def _name(job: Job) -> str:
    return str(job.bound.dtype).removeprefix("torch.")
