"""The warm-up of Algorithm 1: nets learn by SGD on small random batches, many at once where they are fully
connected.

Every net draws from generators of its own, so that it does not matter which others it is trained with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from local_elasticity.engine.guard import isolated
from local_elasticity.models.small import fnn
from local_elasticity.papers.he2020local.stack import (
    Activation,
    Loss,
    PreActivations,
    ThreeLayers,
    Top,
    Weights,
    initial_weights,
    leave_silent_units_out,
    linear_units_gathered,
    loss_gradient,
    still_inputs_gathered,
    with_one,
)


@dataclass(frozen=True)
class TrainingTask:
    """What one net learns: inputs [n, ...], labels [n], the step size, the seed of its initial weights and batches."""

    x: Tensor
    y: Tensor
    rate: float
    seed: int


@dataclass(frozen=True)
class WarmUpSchedule:
    """How all nets of a stack learn."""

    loss: Loss
    epochs: int
    batch_size: int


@dataclass(frozen=True)
class Learned:
    """A net (logits), the task's examples in the coordinates that it reads, and the step size it learned with."""

    net: nn.Module
    x: Tensor
    rate: float


def learn_two_layers(
    tasks: Sequence[TrainingTask],
    schedule: WarmUpSchedule,
    *,
    width: int,
    activation: Activation,
    device: str,
    dtype: torch.dtype = torch.float32,
) -> list[Learned]:
    """Train one two-layer net on every task; tasks are of one size.

    >>> x, y = torch.eye(4, 3), torch.tensor([1.0, 1.0, 0.0, 0.0])
    >>> tasks = [TrainingTask(x, y, rate=0.1, seed=seed) for seed in (0, 1)]
    >>> schedule = WarmUpSchedule("l2", epochs=300, batch_size=2)
    >>> learned = learn_two_layers(tasks, schedule, width=64, activation="relu", device="cpu")
    >>> [(one.net(one.x)[:, 0] > 0.5).tolist() for one in learned]
    [[True, True, False, False], [True, True, False, False]]
    """
    with isolated(torch.device(device), None), torch.no_grad():
        x, W, V, c = _stacked(tasks, width, device, dtype)
        if activation == "linear":
            W, V = linear_units_gathered(W, V)
        y = torch.stack([task.y.to(device, dtype) for task in tasks])
        rates = torch.tensor([task.rate for task in tasks], device=device, dtype=dtype)
        lower = (Weights if 2 * x.shape[2] <= x.shape[1] else PreActivations)(x, W)
        top = Top(y, V, c, rates, schedule.loss, activation)
        for epoch, batches in enumerate(_epochs(tasks, schedule, device), start=1):
            for rows in batches:
                lower.move(rows, top.step(rows, lower.pre_activations(rows)))
            if activation == "relu" and _is_power_of_two(epoch):
                leave_silent_units_out(lower, top)
        W = lower.weights()
        return [Learned(_net(W[i], top.V[i], top.c[i], activation), x[i], task.rate) for i, task in enumerate(tasks)]


def learn_one(task: TrainingTask, schedule: WarmUpSchedule, make: Callable[[], nn.Module], device: str) -> Learned:
    """Train any net on one task, by PyTorch's own SGD from PyTorch's own initial weights for the task's seed.

    >>> task = TrainingTask(torch.eye(2), torch.tensor([1.0, 0.0]), rate=0.5, seed=0)
    >>> learned = learn_one(task, WarmUpSchedule("l2", epochs=99, batch_size=2), lambda: nn.Linear(2, 1), "cpu")
    >>> learned.net(learned.x)[:, 0].round(decimals=2).tolist()
    [1.0, 0.0]
    """
    with isolated(torch.device(device), None):
        torch.manual_seed(task.seed)
        net = make().to(device)
        x, y = task.x.to(device), task.y.to(device, task.x.dtype)
        optimizer = torch.optim.SGD(net.parameters(), lr=task.rate)
        for rows in (rows[0] for epoch in _epochs([task], schedule, device) for rows in epoch):
            optimizer.zero_grad(set_to_none=True)
            f = net(x[rows])[:, 0]
            f.backward(loss_gradient(f.detach(), y[rows], schedule.loss))
            optimizer.step()
        return Learned(net, x, task.rate)


def learn_three_layers(
    tasks: Sequence[TrainingTask], schedule: WarmUpSchedule, *, width: int, activation: Activation, device: str
) -> list[Learned]:
    """Train one three-layer net on every task, as `learn_one` does with `fnn(layers=3)` but all of them together. Tasks
    are of one size.

    >>> x, y = torch.eye(4, 3), torch.tensor([1.0, 1.0, 0.0, 0.0])
    >>> tasks = [TrainingTask(x, y, rate=0.1, seed=seed) for seed in (0, 1)]
    >>> schedule = WarmUpSchedule("l2", epochs=300, batch_size=4)
    >>> learned = learn_three_layers(tasks, schedule, width=32, activation="relu", device="cpu")
    >>> [(one.net(one.x)[:, 0] > 0.5).tolist() for one in learned]
    [[True, True, False, False], [True, True, False, False]]
    """
    with isolated(torch.device(device), None), torch.no_grad():
        nets = []
        for task in tasks:
            torch.manual_seed(task.seed)
            nets.append(fnn(task.x[0].numel(), width=width, layers=3, activation=activation).to(device, task.x.dtype))
        x = torch.stack([task.x.to(device) for task in tasks])
        y = torch.stack([task.y.to(x) for task in tasks])
        rates = torch.tensor([task.rate for task in tasks], device=device, dtype=x.dtype)
        stack = ThreeLayers(nets, x.flatten(2), y, rates, schedule.loss, activation)
        for epoch in _epochs(tasks, schedule, device):
            for rows in epoch:
                stack.step(rows)
        stack.write_into(nets)
        return [Learned(net, x[i], task.rate) for i, (net, task) in enumerate(zip(nets, tasks, strict=True))]


def _stacked(
    tasks: Sequence[TrainingTask], width: int, device: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs x [s, n, r] with what is still gathered, and weights W [s, h, r], V [s, h], c [s] that read them. Columns
    of zeros make r the same for all nets, and round, because matrix products like that.
    """
    inputs = [task.x.flatten(1).to(device, dtype) for task in tasks]
    bases = [still_inputs_gathered(x) for x in inputs]
    r = 8 * -(-max(basis.shape[1] for basis in bases) // 8)
    starts = [
        initial_weights(x.shape[1], width, seed=task.seed, device=device, dtype=dtype)
        for x, task in zip(inputs, tasks, strict=True)
    ]
    x = torch.stack([_wider(with_one(x) @ basis, r) for x, basis in zip(inputs, bases, strict=True)])
    W = torch.stack([_wider(start[0] @ basis, r) for start, basis in zip(starts, bases, strict=True)])
    return x, W, torch.stack([start[1] for start in starts]), torch.stack([start[2] for start in starts])


def _epochs(tasks: Sequence[TrainingTask], schedule: WarmUpSchedule, device: str) -> list[tuple[Tensor, ...]]:
    """The rows [s, B] of every step of every epoch: a new random order each time, each net's own; or all at once."""
    n = len(tasks[0].x)
    if schedule.batch_size >= n:
        return [(torch.arange(n, device=device).expand(len(tasks), n),)] * schedule.epochs
    orders = [
        torch.rand(schedule.epochs, n, generator=torch.Generator().manual_seed(one.seed)).argsort(1) for one in tasks
    ]
    together = torch.stack(orders, dim=1).to(device)
    return [epoch.split(schedule.batch_size, dim=1) for epoch in together]


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _wider(matrix: Tensor, columns: int) -> Tensor:
    return nn.functional.pad(matrix, (0, columns - matrix.shape[1]))


def _net(W: Tensor, V: Tensor, c: Tensor, activation: Activation) -> nn.Sequential:
    with torch.device("meta"):
        first, last = nn.Linear(W.shape[1], W.shape[0], bias=False), nn.Linear(W.shape[0], 1)
    first.weight, last.weight, last.bias = nn.Parameter(W), nn.Parameter(V[None]), nn.Parameter(c[None])
    between: dict[Activation, list[nn.Module]] = {"relu": [nn.ReLU()], "sigmoid": [nn.Sigmoid()], "linear": []}
    return nn.Sequential(first, *between[activation], last)
