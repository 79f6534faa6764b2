"""The warm-up of Algorithm 1, for many nets at once: SGD on small random batches, primary against auxiliary examples.

Two-layer nets f = Vᵀσ(W x + b) + c are stacked and stepped by hand, in coordinates in which gradient descent is the same
and cheaper:

* **Still pixels.** What is equal in all examples, the bias among it, acts as one input. A rotation of the inputs that
  gathers it leaves every step as it was, and MNIST with some 600 columns instead of 785.
* **Pre-activations.** Where there are fewer examples than twice the columns, the pre-activations Z of all examples are
  kept instead of W: a step on the batch B moves them by −η (X X_Bᵀ) ∂ℓ/∂Z_B, one product instead of two.
* **Silent units.** A ReLU that no example turns on never moves again and adds nothing: it is left out. The paper's rate is
  far beyond what 40960 units with the squared loss bear at the start, and most of them fall silent within a few steps.
* **Linear nets.** Rotations of the hidden layer change nothing, and gradient descent never leaves the span of W's columns
  and V: a net of 40960 linear units is one of r + 1, whose weights are the Cholesky factor of [W V]ᵀ[W V].

Every net draws from a generator of its own, so that it does not matter which others it is trained with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from local_elasticity.engine.guard import held_still

Activation = Literal["relu", "linear", "sigmoid"]
Loss = Literal["l2", "bce", "bce of probabilities"]
"""The squared error; the cross-entropy of logits; the same as nn.BCELoss differentiates it after a sigmoid in float32,
where a probability that rounds to 0 or 1 has no gradient."""


@dataclass(frozen=True)
class Lesson:
    """What one net learns: inputs [n, ...], labels [n], the step size, the seed of its initial weights and batches."""

    x: Tensor
    y: Tensor
    rate: float
    seed: int


@dataclass(frozen=True)
class Schedule:
    """How all nets of a stack learn it."""

    loss: Loss
    epochs: int
    batch_size: int


@dataclass(frozen=True)
class Learned:
    """A net (logits), and the lesson's examples in the coordinates that it reads."""

    net: nn.Module
    x: Tensor


def learn_two_layers(
    lessons: Sequence[Lesson],
    schedule: Schedule,
    *,
    width: int,
    activation: Activation,
    device: str,
    dtype: torch.dtype = torch.float32,
) -> list[Learned]:
    """Train one two-layer net on every lesson; lessons are of one size.

    >>> x, y = torch.eye(4, 3), torch.tensor([1.0, 1.0, 0.0, 0.0])
    >>> lessons = [Lesson(x, y, rate=0.1, seed=seed) for seed in (0, 1)]
    >>> schedule = Schedule("l2", epochs=300, batch_size=2)
    >>> learned = learn_two_layers(lessons, schedule, width=64, activation="relu", device="cpu")
    >>> [(one.net(one.x)[:, 0] > 0.5).tolist() for one in learned]
    [[True, True, False, False], [True, True, False, False]]
    """
    with held_still(torch.device(device), None), torch.no_grad():
        x, W, V, c = _stacked(lessons, width, device, dtype)
        if activation == "linear":
            W, V = linear_units_gathered(W, V)
        y = torch.stack([lesson.y.to(device, dtype) for lesson in lessons])
        stack = (_Weights if 2 * x.shape[2] <= x.shape[1] else _PreActivations)(x, W)
        rates = torch.tensor([lesson.rate for lesson in lessons], device=device, dtype=dtype)
        top = _Top(y, V, c, rates, schedule.loss, activation)
        _train(stack, top, _epochs(lessons, schedule, device))
        W = stack.weights()
        return [Learned(_net(W[i], top.V[i], top.c[i], activation), x[i]) for i in range(len(lessons))]


def _stacked(
    lessons: Sequence[Lesson], width: int, device: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs x [s, n, r] with what is still gathered, and weights W [s, h, r], V [s, h], c [s] that read them."""
    inputs = [lesson.x.flatten(1).to(device, dtype) for lesson in lessons]
    bases = [still_inputs_gathered(x) for x in inputs]
    r = max(basis.shape[1] for basis in bases)
    starts = [
        initial_weights(x.shape[1], width, seed=lesson.seed, device=device, dtype=dtype)
        for x, lesson in zip(inputs, lessons, strict=True)
    ]
    x = torch.stack([_wider(_with_one(x) @ basis, r) for x, basis in zip(inputs, bases, strict=True)])
    W = torch.stack([_wider(start[0] @ basis, r) for start, basis in zip(starts, bases, strict=True)])
    return x, W, torch.stack([start[1] for start in starts]), torch.stack([start[2] for start in starts])


def learn_one(lesson: Lesson, schedule: Schedule, make: Callable[[], nn.Module], device: str) -> Learned:
    """Train any net on one lesson, by PyTorch's own SGD; the initial weights are PyTorch's own for the lesson's seed."""
    with held_still(torch.device(device), None):
        torch.manual_seed(lesson.seed)
        net = make().to(device)
        x, y = lesson.x.to(device), lesson.y.to(device, lesson.x.dtype)
        optimizer = torch.optim.SGD(net.parameters(), lr=lesson.rate)
        for rows in (rows[0] for epoch in _epochs([lesson], schedule, device) for rows in epoch):
            optimizer.zero_grad(set_to_none=True)
            f = net(x[rows])[:, 0]
            f.backward(_loss_gradient(f.detach(), y[rows], schedule.loss))
            optimizer.step()
        return Learned(net, x)


def initial_weights(
    inputs: int, width: int, *, seed: int, device: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """PyTorch's own initialisation of two linear layers, uniform within ±1/√inputs: [W b], V and c."""
    generator = torch.Generator(device).manual_seed(seed)

    def uniform(*shape: int, fan: int) -> Tensor:
        return (2 * torch.rand(shape, generator=generator, device=device, dtype=dtype) - 1) * fan**-0.5

    return uniform(width, inputs + 1, fan=inputs), uniform(width, fan=width), uniform(fan=width)


def still_inputs_gathered(x: Tensor) -> Tensor:
    """An orthonormal basis [d + 1, r] in which all that never changes in the examples [x 1] is one coordinate.

    >>> still_inputs_gathered(torch.tensor([[3.0, 0.0], [3.0, 5.0]])).shape  # the first input and the one beside it
    torch.Size([3, 2])
    """
    x = _with_one(x)
    still = (x == x[0]).all(0)
    direction = torch.where(still, x[0], 0.0)
    units = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)[:, ~still]
    return torch.cat([units, (direction / direction.norm())[:, None]], dim=1)


def linear_units_gathered(W: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of linear nets [s, h, r], [s, h] in an orthonormal basis of the hidden directions that they use:
    [s, r + 1, r], [s, r + 1]. Nets that are narrower than that stay as they are.
    """
    if W.shape[1] <= W.shape[2] + 1:
        return W, V
    small = []
    for one in torch.cat([W, V[:, :, None]], dim=2).double():
        used = one.square().sum(0) > 0
        factor = one.new_zeros(one.shape[1], one.shape[1])
        factor[: used.sum(), used] = torch.linalg.cholesky(one[:, used].T @ one[:, used], upper=True)
        small.append(factor.to(W.dtype))
    gathered = torch.stack(small)
    return gathered[:, :, :-1].contiguous(), gathered[:, :, -1].contiguous()


class _Weights:
    """The stack as its weights, x [s, n, r] and W [s, h, r]: two products a step, forward and back."""

    def __init__(self, x: Tensor, W: Tensor) -> None:
        self.x, self.W = x, W
        self.each = torch.arange(len(x), device=x.device)[:, None]

    def pre_activations(self, rows: Tensor) -> Tensor:
        return torch.bmm(self.x[self.each, rows], self.W.mT)

    def move(self, rows: Tensor, step: Tensor) -> None:
        self.W.baddbmm_(step.mT, self.x[self.each, rows], alpha=-1)

    def active(self) -> Tensor:
        """Units that some example of their net turns on, [s, h]."""
        return torch.stack([(x @ W.T > 0).any(0) for x, W in zip(self.x, self.W, strict=True)])

    def keep(self, units: Tensor) -> None:
        self.W = self.W[self.each, units]

    def weights(self) -> Tensor:
        return self.W


class _PreActivations:
    """The stack as the pre-activations of all examples, Z [s, n, h], and what each example has added to the weights."""

    def __init__(self, x: Tensor, W: Tensor) -> None:
        self.x, self.W = x, W
        self.each = torch.arange(len(x), device=x.device)[:, None]
        self.gram, self.Z = torch.bmm(x, x.mT), torch.bmm(x, W.mT)
        self.added = torch.zeros_like(self.Z)

    def pre_activations(self, rows: Tensor) -> Tensor:
        return self.Z[self.each, rows]

    def move(self, rows: Tensor, step: Tensor) -> None:
        self.Z.baddbmm_(self.gram[self.each, rows].mT, step, alpha=-1)
        self.added[self.each, rows] -= step

    def active(self) -> Tensor:
        return (self.Z > 0).any(1)

    def keep(self, units: Tensor) -> None:
        self.W = self.W[self.each, units]
        for name in ("Z", "added"):
            columns = units[:, None].expand(-1, self.x.shape[1], -1)
            setattr(self, name, getattr(self, name).gather(2, columns))

    def weights(self) -> Tensor:
        return torch.baddbmm(self.W, self.added.mT, self.x)


class _Top:
    """Upper weights V [s, h] and biases c [s]: a step moves them, and says how the lower ones move."""

    def __init__(self, y: Tensor, V: Tensor, c: Tensor, rates: Tensor, loss: Loss, activation: Activation) -> None:
        self.y, self.V, self.c, self.rates = y, V, c, rates
        self.loss, self.activation = loss, activation

    def step(self, rows: Tensor, Z: Tensor) -> Tensor:
        """η ∂ℓ/∂Z at the pre-activations Z [s, B, h] of a batch, which are used up."""
        H, slope = _activated(Z, self.activation)
        f = torch.bmm(H, self.V[:, :, None])[:, :, 0] + self.c[:, None]
        g = self.rates[:, None] * _loss_gradient(f, self.y.gather(1, rows), self.loss)
        moved = torch.bmm(H.mT, g[:, :, None])[:, :, 0]
        step = torch.mul(g[:, :, None], self.V[:, None], out=H)
        if slope is not None:
            step.mul_(slope)
        self.V.sub_(moved)
        self.c.sub_(g.sum(1))
        return step


def _activated(Z: Tensor, activation: Activation) -> tuple[Tensor, Tensor | None]:
    """σ(Z), in Z's place, and σ′(Z); None where that is one."""
    if activation == "relu":
        on = Z > 0
        return Z.relu_(), on
    if activation == "sigmoid":
        H = Z.sigmoid_()
        return H, H * (1 - H)
    return Z, None


def _train(stack: _Weights | _PreActivations, top: _Top, epochs: Sequence[Sequence[Tensor]]) -> None:
    """Step through the batches; after epochs 1, 2, 4, … leave the units out that no example turns on."""
    for epoch, batches in enumerate(epochs, start=1):
        for rows in batches:
            stack.move(rows, top.step(rows, stack.pre_activations(rows)))
        if top.activation == "relu" and epoch & (epoch - 1) == 0:
            active = stack.active()
            units = active.int().argsort(dim=1, descending=True, stable=True)[:, : max(1, int(active.sum(1).max()))]
            stack.keep(units)
            top.V = top.V.gather(1, units)


def _loss_gradient(f: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """∂/∂f of the mean over the batch."""
    if loss == "l2":
        return 2 * (f - y) / f.shape[-1]
    p = torch.sigmoid(f)
    if loss == "bce":
        return (p - y) / f.shape[-1]
    slope = p * (1 - p)
    return (p - y) * slope / slope.clamp_min(1e-12) / f.shape[-1]


def _epochs(lessons: Sequence[Lesson], schedule: Schedule, device: str) -> list[tuple[Tensor, ...]]:
    """The rows [s, B] of every step of every epoch: a new random order each time, each net's own; or all at once."""
    n = len(lessons[0].x)
    if schedule.batch_size >= n:
        return [(torch.arange(n, device=device).expand(len(lessons), n),)] * schedule.epochs
    orders = [
        torch.rand(schedule.epochs, n, generator=torch.Generator().manual_seed(one.seed)).argsort(1) for one in lessons
    ]
    together = torch.stack(orders, dim=1).to(device)
    return [epoch.split(schedule.batch_size, dim=1) for epoch in together]


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1)


def _wider(matrix: Tensor, columns: int) -> Tensor:
    return nn.functional.pad(matrix, (0, columns - matrix.shape[1]))


def _net(W: Tensor, V: Tensor, c: Tensor, activation: Activation) -> nn.Sequential:
    with torch.device("meta"):
        first, last = nn.Linear(W.shape[1], W.shape[0], bias=False), nn.Linear(W.shape[0], 1)
    first.weight, last.weight, last.bias = (nn.Parameter(p) for p in (W, V[None], c[None]))
    between = {"relu": [nn.ReLU()], "sigmoid": [nn.Sigmoid()], "linear": []}[activation]
    return nn.Sequential(first, *between, last)
