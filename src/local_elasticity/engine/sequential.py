"""Responses along a walk: the weights really move at every step (He & Su, Algorithm 1).

For two-layer nets the pre-activations of all examples are kept and moved by the rank-one change of each step, so that a
step costs a few passes over them instead of forward passes, and nothing is subtracted. Other nets are walked plainly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from local_elasticity.engine.fast_paths.two_layer import TwoLayerRunner
from local_elasticity.engine.guard import untouched
from local_elasticity.engine.job import Job
from local_elasticity.engine.looped import LoopedRunner
from local_elasticity.engine.loss import LossFunction, gradient_cancels
from local_elasticity.engine.noise import Noise, turned_by_rounding
from local_elasticity.engine.null_steps import rounding_at_few
from local_elasticity.engine.problem import Problem, as_predictions, as_problem, leaves_of
from local_elasticity.engine.progress import Progress, ProgressOption
from local_elasticity.engine.response import Response
from local_elasticity.engine.rows import Rows
from local_elasticity.engine.rules.elementwise import relu_change, sigmoid_change
from local_elasticity.engine.stepped_weights import realized_step
from local_elasticity.engine.structured import two_layer_runner
from local_elasticity.engine.supported import UnsupportedModelError
from local_elasticity.engine.update import DEFAULT_UPDATE, SGD, Update

ROWS_AT_ONCE = {"cpu": 16, "cuda": 1 << 14}
"""Examples whose hidden units are updated together: as many as fit into caches, or as keep a GPU busy."""


@untouched
def respond_in_sequence(
    problem: Problem | nn.Module,
    stream: Any,
    targets: Any,
    *,
    loss: str | LossFunction | None = None,
    update: Update = DEFAULT_UPDATE,
    record: Any = None,
    memory: int | None = None,
    progress: ProgressOption = None,
) -> Response:
    """Step on one example of the stream after another, each from the weights that the last one left; the model is not
    changed.

    Row t is what step t did: f(x′; w_t) − f(x′; w_{t−1}) at every target and at the example itself. `target_before` has
    the shape [n, m, k] here, since predictions before a step are those after the one before it.

    Args:
        problem, loss: as for `respond`.
        stream: (inputs, labels) in the order of the walk.
        targets: inputs at which every recorded step is read.
        update: `SGD`, with or without weight decay.
        record: which steps become rows, a boolean for each; all of them by default. The others move the weights too.
        memory, progress: as for `respond`; a two-layer net is walked with the hidden units of every example at hand,
            n + m of them, whatever `memory` says.

    Returns:
        A `Response` with a row for every recorded step.

    Raises:
        ValueError, TypeError: what is wrong with an argument; the message begins with its name.

    >>> import torch, local_elasticity as le
    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> x, y = torch.eye(2), torch.full((2,), 3.0)
    >>> walk = le.respond_in_sequence(le.Problem.of(net, "half_mse"), (x, y), x, update=le.SGD(0.1))
    >>> le.relative(walk)
    tensor([[1., 0.],
            [0., 1.]])
    """
    problem = as_problem(problem, loss)
    if not isinstance(update, SGD):
        raise ValueError(
            f"update: a walk takes steps of le.SGD, which has no state that would move along, not {update!r}"
        )
    with problem.bound() as bound:
        job = Job.read(bound, stream, targets, update, memory=memory)
        recorded = _checked_record(record, job)
        with torch.no_grad(), Progress(job.n, "steps", progress) as bar:
            net = _two_layers(job)
            if net is not None:
                walk, noise, name = _TwoLayerWalk(job, net, recorded).steps(), None, "sequential, two layers"
            else:
                runner = LoopedRunner(job)
                walk, noise, name = (
                    _plain_steps(job, runner, recorded),
                    Noise.measure(job, runner),
                    "sequential, looped",
                )
            return _response(job, recorded, walk, noise, name, bar)


@dataclass(frozen=True)
class WalkStep:
    """What one recorded step did: at its source [1, k], at the targets [m, k]."""

    source_before: Tensor
    target_before: Tensor
    source_change: Tensor
    target_change: Tensor
    loss_gradient: Tensor
    realized: Tensor


def _plain_steps(job: Job, runner: LoopedRunner, recorded: Tensor) -> Iterator[WalkStep | None]:
    """Gradient, step, predict, subtract."""
    params = runner.params
    before: Tensor | None = runner.target_before
    for row in range(job.n):
        runner.leaves = leaves_of(params)
        at_source, loss_gradient, gradient = runner.gradient(row)
        if recorded[row] and before is None:
            before = job.predict(params, job.target_inputs, runner.at_once)
        moved = job.rule(params, gradient)
        after = {name: p + moved[name] for name, p in params.items()}
        realized = realized_step(params, after, gradient, moved)
        params = after
        if not recorded[row] or before is None:
            before = None
            yield None
            continue
        predictions = job.predict(params, job.target_inputs, runner.at_once)
        change = job.bound.predict(params, job.source(row)[0]) - at_source
        yield WalkStep(at_source, before, change, predictions - before, loss_gradient, realized)
        before = predictions


def _two_layers(job: Job) -> TwoLayerRunner | None:
    """A proved runner for a net that is one of two layers; None for any other."""
    try:
        return two_layer_runner(job)
    except UnsupportedModelError:
        return None


class _TwoLayerWalk:
    """All examples' pre-activations Z, and the upper weights, as they move."""

    def __init__(self, job: Job, net: TwoLayerRunner, recorded: Tensor) -> None:
        self.job, self.net, self.recorded = job, net, recorded
        stream = job.examples()
        passes = [self.net.run(inputs) for inputs in (stream, job.target_inputs)]
        self.x = torch.cat([one.x for one in passes])
        self.Z = torch.cat([one.Z for one in passes])
        self.V = self.net.V.clone()
        self.c = self.V.new_zeros(len(self.V)) if self.net.c is None else self.net.c.clone()
        self.shape = passes[0].outputs.shape[1:]

    def steps(self) -> Iterator[WalkStep | None]:
        for row in range(self.job.n):
            yield self._step(row)

    def _step(self, row: int) -> WalkStep | None:
        net, rate = self.net, self.job.update.step_size
        hidden = self._hidden(self.Z[row])
        top = F.linear(hidden, self.V, self.c)[None]
        outputs = torch.sigmoid(top) if net.sigmoid else top
        labels = self.job.source_labels[row : row + 1]
        loss_gradient = self.job.bound.loss_gradients(outputs.reshape(1, *self.shape), labels)[:, 0]
        g = loss_gradient * outputs * (1 - outputs) if net.sigmoid else loss_gradient
        u = (g @ self.V)[0]
        u = u * (self.Z[row] > 0) if net.relu else u
        met = self.x @ self.x[row] if net.W_steps else self.x.new_zeros(len(self.x))
        s = -rate * (met + 1 if net.b_steps else met)
        moved_V = -rate * g.T * hidden if net.V_steps else torch.zeros_like(self.V)
        moved_c = -rate * g[0] if net.c_steps else torch.zeros_like(self.c)
        step = (
            self._read(row, s, u, moved_V, moved_c, as_predictions(outputs), loss_gradient)
            if self.recorded[row]
            else None
        )
        self._move(s, u)
        self.V, self.c = self.V + moved_V, self.c + moved_c
        return step

    def _read(
        self, row: int, s: Tensor, u: Tensor, moved_V: Tensor, moved_c: Tensor, before: Tensor, loss_gradient: Tensor
    ) -> WalkStep:
        """The change of the source and of every target, block by block."""
        at_once = ROWS_AT_ONCE.get(s.device.type, ROWS_AT_ONCE["cpu"])
        blocks = [slice(row, row + 1)]
        blocks += [slice(i, min(i + at_once, len(s))) for i in range(self.job.n, len(s), at_once)]
        tops, changes = [], []
        for rows in blocks:
            Z, shift = self.Z[rows], s[rows, None] * u
            hidden = self._hidden(Z)
            moved = relu_change(Z, shift) if self.net.relu else shift
            tops.append(F.linear(hidden, self.V, self.c))
            changes.append(moved @ self.V.T + (hidden + moved) @ moved_V.T + moved_c)
        top, change = torch.cat(tops), torch.cat(changes)
        predictions = torch.sigmoid(top) if self.net.sigmoid else top
        change = sigmoid_change(top, change) if self.net.sigmoid else change
        one = torch.ones((), dtype=s.dtype, device=s.device)
        return WalkStep(before, predictions[1:], change[:1], change[1:], loss_gradient, one)

    def _move(self, s: Tensor, u: Tensor) -> None:
        at_once = ROWS_AT_ONCE.get(s.device.type, ROWS_AT_ONCE["cpu"])
        for i in range(0, len(s), at_once):
            self.Z[i : i + at_once].addr_(s[i : i + at_once], u)

    def _hidden(self, Z: Tensor) -> Tensor:
        return torch.relu(Z) if self.net.relu else Z


def _response(
    job: Job, recorded: Tensor, walk: Iterator[WalkStep | None], noise: Noise | None, name: str, bar: Progress
) -> Response:
    steps: list[WalkStep] = []
    for step in walk:
        if step is not None:
            steps.append(step)
        bar.advance()
    measured = Rows.of(
        torch.stack([step.source_change for step in steps]),
        torch.stack([step.target_change for step in steps]),
        torch.stack([step.loss_gradient for step in steps]),
        torch.stack([step.realized for step in steps]),
        subtracted=noise is not None,
    )
    before = torch.stack([step.source_before for step in steps])
    at_targets = torch.zeros_like(steps[0].target_before) if noise is None else noise.target
    at_sources = torch.zeros_like(before) if noise is None else noise.source[recorded.to(before.device)]
    typical = rounding_at_few(job, steps[0].target_before).typical if noise is None else 0.0
    cancels = gradient_cancels(job.bound.loss_function, job.source_labels)
    turned = turned_by_rounding(job, before, job.source_labels[recorded.to(job.source_labels.device)])
    dtype = torch.float64 if job.bound.dtype == torch.float64 else torch.float32
    return Response(
        source_before=before[:, 0].to(dtype),
        target_before=torch.stack([step.target_before for step in steps]).to(dtype),
        source_change=measured.source_change[:, 0].to(dtype),
        target_change=measured.target_change.to(dtype),
        loss_gradient=measured.loss_gradient[:, 0].to(dtype),
        step_size=torch.full((len(steps),), job.update.step_size, dtype=dtype, device=job.bound.device),
        source_noise=Noise(before, at_sources, at_targets, cancels, turned=turned).of_rows(measured)[:, 0].to(dtype),
        target_noise=at_targets.to(dtype),
        noise_scale=measured.subtracted.to(dtype),
        source_rounding=at_sources[:, 0].clamp_min(typical).to(dtype),
        target_rounding=at_targets.clamp_min(typical).to(dtype),
        kind=job.kind,
        update=job.update,
        engine=name,
        policy=job.bound.problem.policy,
        targets_are_sources=False,
        source_labels=job.source_labels[recorded.to(job.source_labels.device), 0],
        target_labels=job.target_labels,
        loss=job.bound.loss_function,
        output_shape=job.output_shape,
    )


def _checked_record(record: Any, job: Job) -> Tensor:
    if record is None:
        return torch.ones(job.n, dtype=torch.bool, device="cpu")
    recorded = torch.as_tensor(record, dtype=torch.bool, device="cpu")
    if recorded.shape != (job.n,) or not recorded.any():
        raise ValueError(f"record: expected a boolean for each of {job.n} steps, at least one of them true")
    return recorded
