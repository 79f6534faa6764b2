"""The warm-up: a network learns to tell primary from auxiliary points, by plain SGD at a rate that does not diverge."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from local_elasticity.clustering.fused_sgd import steps_in_place
from local_elasticity.engine.loss import LossFunction
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.progress import Progress, ProgressOption
from local_elasticity.measures.kernel import ntk

CURVATURE = {"half_mse": 1.0, "mse": 2.0, "bce": 4.0}
"""∂²ℓ/∂f², for BCE at f = 1/2, where training begins."""

EXAMINED = 256
"""Points from which the stable rate is read."""

HALVINGS = 20
"""How often a rate is halved if training still diverges."""

logger = logging.getLogger("local_elasticity")


@dataclass(frozen=True)
class Training:
    """Labelled points and how a network is trained on them.

    Attributes:
        x, y: [n, …] and [n].
        loss: a name of `le.Problem.of`.
        epochs, batch_size: of minibatches, drawn again in every epoch.
        seed: of the draw.
    """

    x: Tensor
    y: Tensor
    loss: str
    epochs: int
    batch_size: int
    seed: int

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """An endless walk through the epochs' batches."""
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            order = torch.randperm(len(self.x), generator=generator).to(self.x.device)
            for rows in order.split(self.batch_size):
                yield self.x[rows], self.y[rows]

    @property
    def primary(self) -> Tensor:
        """The points to be clustered, which have the label 1 and come first."""
        return self.x[: int((self.y == 1).sum())]

    def orders(self, passes: int) -> Tensor:
        """Random orders of all points, [passes, n]."""
        generator = torch.Generator().manual_seed(self.seed)
        drawn = [torch.randperm(len(self.x), generator=generator) for _ in range(passes)]
        return torch.stack(drawn).to(self.x.device)

    @property
    def batches_an_epoch(self) -> int:
        return -(-len(self.x) // self.batch_size)


@dataclass(frozen=True)
class WarmUpHistory:
    """What the warm-up went through: the rate, and the mean loss of every epoch."""

    learning_rate: float
    loss: list[float] = field(default_factory=list)


def stable_rate(net: nn.Module, training: Training, *, batch_size: int | None = None) -> float:
    """The largest rate at which SGD surely does not diverge at the start, 1/λ_max(ℓ″Θ/n), from `EXAMINED` points; no
    more than 1/(ℓ″ max Θ(x, x)/B), so that one long vector in a batch of B does no harm either.

    >>> import torch
    >>> x, y = torch.tensor([[3.0], [-3.0]]), torch.tensor([1.0, -1.0])
    >>> net = torch.nn.Linear(1, 1)  # Θ = x·x′ + 1, λ_max(Θ/2) = 9
    >>> round(1 / stable_rate(net, Training(x, y, "half_mse", epochs=1, batch_size=2, seed=0)), 5)
    9.0
    """
    generator = torch.Generator().manual_seed(training.seed)
    rows = torch.randperm(len(training.x), generator=generator)[:EXAMINED].to(training.x.device)
    theta = ntk(Problem.of(net, training.loss), training.x[rows]).double()
    largest = float(torch.linalg.eigvalsh(theta / len(theta)).max())
    longest = float(theta.diagonal().max()) / (batch_size or training.batch_size)
    return 1 / max(CURVATURE[training.loss] * max(largest, longest), 1e-12)


def learn(
    net: nn.Module, training: Training, learning_rate: float | None = None, *, progress: ProgressOption = None
) -> WarmUpHistory:
    """The warm-up at a given rate, which must not diverge. Without one, the largest stable rate is used; if
    training still diverges, it starts again at half of that rate.

    >>> import torch
    >>> x, y = torch.tensor([[3.0], [-3.0]]), torch.tensor([1.0, -1.0])
    >>> net, training = torch.nn.Linear(1, 1, bias=False), Training(x, y, "half_mse", epochs=9, batch_size=2, seed=0)
    >>> learn(net, training).loss[-1] < 0.01
    True
    """
    if learning_rate is not None:
        history = warm_up(net, training, learning_rate, progress=progress)
        if math.isfinite(history.loss[-1]):
            return history
        raise ValueError(
            f"learning_rate: the warm-up diverged at {learning_rate}; leave it out, and a stable one is found"
        )
    start = copy.deepcopy(net.state_dict())
    rate = stable_rate(net, training)
    for _ in range(HALVINGS):
        history = warm_up(net, training, rate, progress=progress)
        if math.isfinite(history.loss[-1]):
            return history
        logger.info("the warm-up diverged at the rate %g; again at half of it", rate)
        net.load_state_dict(start)
        rate /= 2
    raise ValueError("network: the warm-up diverged at every rate that was tried; is its output finite?")


def warm_up(
    net: nn.Module, training: Training, learning_rate: float, *, progress: ProgressOption = None
) -> WarmUpHistory:
    """Train the network in place, by plain SGD. The history's last loss is NaN or infinite where it diverged."""
    history = WarmUpHistory(learning_rate)
    net.eval()
    with (
        Progress(training.epochs, "epochs of warm-up", progress) as bar,
        steps_in_place(net, training.x[:2], learning_rate),
        _seeded(training),
    ):
        net.train()
        batches = training.batches()
        for _ in range(training.epochs):
            history.loss.append(_epoch(net, training, batches, learning_rate))
            if not math.isfinite(history.loss[-1]):
                break
            bar.advance()
    net.eval()
    return history


def _epoch(net: nn.Module, training: Training, batches: Iterator[tuple[Tensor, Tensor]], learning_rate: float) -> float:
    """One step on each batch; the mean loss of the batches."""
    loss_of: LossFunction = Problem.of(net, training.loss).loss
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
    total = torch.zeros((), device=training.x.device)
    for _ in range(training.batches_an_epoch):
        x, y = next(batches)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(net(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(x)
    return float(total) / len(training.x)


@contextmanager
def _seeded(training: Training) -> Iterator[None]:
    """Dropout draws from the global generators, which are put back as they were."""
    devices = [training.x.device] if training.x.is_cuda else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(training.seed)
        yield
