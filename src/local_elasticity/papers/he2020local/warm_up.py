"""The warm-up of Algorithm 1, for many nets at once: SGD on small random batches, primary against auxiliary examples.

Two-layer nets f = Vᵀσ(W x + b) + c are stacked and stepped by hand, in coordinates in which gradient descent is the same
and cheaper:

* **Still pixels.** What is equal in all examples, the bias among it, acts as one input. A rotation of the inputs that
  gathers it leaves every step as it was, and MNIST with some 600 columns instead of 785.
* **Pre-activations.** Where there are fewer examples than twice the columns, the pre-activations Z of all examples are
  kept instead of W: a step on the batch B moves them by −η (X X_Bᵀ) ∂ℓ/∂Z_B, one product instead of two.
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

Loss = Literal["l2", "bce", "bce of probabilities"]
"""The squared error; the cross-entropy of logits; the same as nn.BCELoss differentiates it after a sigmoid in float32,
where a probability that rounds to 0 or 1 has no gradient."""


@dataclass(frozen=True)
class Lesson:
    """What one net learns: inputs [n, ...], labels [n], and the seed of its initial weights and of its batches."""

    x: Tensor
    y: Tensor
    seed: int


@dataclass(frozen=True)
class Schedule:
    """How all nets of a stack learn it."""

    loss: Loss
    rate: float
    epochs: int
    batch_size: int


@dataclass(frozen=True)
class Learned:
    """A net (logits), and the lesson's examples in the coordinates that it reads."""

    net: nn.Module
    x: Tensor


def learn_two_layers(
    lessons: Sequence[Lesson], schedule: Schedule, *, width: int, relu: bool, device: str, dtype: torch.dtype
) -> list[Learned]:
    """Train one two-layer net on every lesson; lessons are of one size.

    >>> x, y = torch.eye(4, 3), torch.tensor([1.0, 1.0, 0.0, 0.0])
    >>> schedule = Schedule("l2", rate=0.1, epochs=300, batch_size=2)
    >>> learned = learn_two_layers(
    ...     [Lesson(x, y, seed) for seed in (0, 1)], schedule, width=64, relu=True, device="cpu", dtype=torch.float32
    ... )
    >>> [(one.net(one.x)[:, 0] > 0.5).tolist() for one in learned]
    [[True, True, False, False], [True, True, False, False]]
    """
    with held_still(torch.device(device), None), torch.no_grad():
        bases = [still_inputs_gathered(lesson.x.flatten(1).to(device, dtype)) for lesson in lessons]
        starts = [
            initial_weights(basis.shape[0] - 1, width, seed=lesson.seed, device=device, dtype=dtype)
            for basis, lesson in zip(bases, lessons, strict=True)
        ]
        r = max(basis.shape[1] for basis in bases)
        x = torch.stack([_wider(_with_one(one.x.flatten(1).to(device, dtype)) @ basis, r) for one, basis in zip(lessons, bases, strict=True)])
        W = torch.stack([_wider(start[0] @ basis, r) for start, basis in zip(starts, bases, strict=True)])
        V = torch.stack([start[1] for start in starts])
        c = torch.stack([start[2] for start in starts])
        if not relu:
            W, V = linear_units_gathered(W, V)
        y = torch.stack([lesson.y.to(device, dtype) for lesson in lessons])
        batches = _batches(lessons, schedule, device)
        step = _Step(y, V, c, schedule, relu)
        W = (_train_weights if 2 * r <= x.shape[1] else _train_pre_activations)(x, W, batches, step)
        return [Learned(_net(W[i], V[i], c[i], relu), x[i]) for i in range(len(lessons))]


def learn_one(lesson: Lesson, schedule: Schedule, make: Callable[[], nn.Module], device: str) -> Learned:
    """Train any net on one lesson, by PyTorch's own SGD; the initial weights are PyTorch's own for the lesson's seed."""
    with held_still(torch.device(device), None):
        torch.manual_seed(lesson.seed)
        net = make().to(device)
        x, y = lesson.x.to(device), lesson.y.to(device, lesson.x.dtype)
        optimizer = torch.optim.SGD(net.parameters(), lr=schedule.rate)
        for rows in _batches([lesson], schedule, device):
            optimizer.zero_grad(set_to_none=True)
            f = net(x[rows[0]])[:, 0]
            f.backward(_loss_gradient(f.detach(), y[rows[0]], schedule.loss))
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


class _Step:
    """A step of V and c in place, and the loss gradient at the pre-activations, which moves W."""

    def __init__(self, y: Tensor, V: Tensor, c: Tensor, schedule: Schedule, relu: bool) -> None:
        self.y, self.V, self.c, self.relu = y, V, c, relu
        self.loss, self.rate = schedule.loss, schedule.rate

    def __call__(self, rows: Tensor, Z: Tensor) -> Tensor:
        """From Z [s, B, h] of the batch, which is used up."""
        off = Z <= 0 if self.relu else None
        H = Z.relu_() if self.relu else Z
        f = torch.bmm(H, self.V[:, :, None])[:, :, 0] + self.c[:, None]
        g = _loss_gradient(f, self.y.gather(1, rows), self.loss)
        moved = torch.bmm(H.mT, g[:, :, None])[:, :, 0]
        at_hidden = torch.mul(g[:, :, None], self.V[:, None], out=H)
        if off is not None:
            at_hidden.masked_fill_(off, 0)
        self.V.sub_(moved, alpha=self.rate)
        self.c.sub_(g.sum(1), alpha=self.rate)
        return at_hidden


def _train_weights(x: Tensor, W: Tensor, batches: Sequence[Tensor], step: _Step) -> Tensor:
    each = torch.arange(len(x), device=x.device)[:, None]
    for rows in batches:
        at = x[each, rows]
        W.baddbmm_(step(rows, torch.bmm(at, W.mT)).mT, at, alpha=-step.rate)
    return W


def _train_pre_activations(x: Tensor, W: Tensor, batches: Sequence[Tensor], step: _Step) -> Tensor:
    """Z moves with every step; W, what each example has added to it in the end."""
    each = torch.arange(len(x), device=x.device)[:, None]
    gram, Z = torch.bmm(x, x.mT), torch.bmm(x, W.mT)
    added = torch.zeros_like(Z)
    for rows in batches:
        at_hidden = step(rows, Z[each, rows])
        Z.baddbmm_(gram[each, rows].mT, at_hidden, alpha=-step.rate)
        added[each, rows] -= step.rate * at_hidden
    return W.baddbmm_(added.mT, x)


def _loss_gradient(f: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """∂/∂f of the mean over the batch."""
    if loss == "l2":
        return 2 * (f - y) / f.shape[-1]
    p = torch.sigmoid(f)
    if loss == "bce":
        return (p - y) / f.shape[-1]
    slope = p * (1 - p)
    return (p - y) * slope / slope.clamp_min(1e-12) / f.shape[-1]


def _batches(lessons: Sequence[Lesson], schedule: Schedule, device: str) -> list[Tensor]:
    """Rows [s, B] of every step: a new random order in every epoch, each net's own."""
    n, size = len(lessons[0].x), schedule.batch_size
    orders = [
        torch.rand(schedule.epochs, n, generator=torch.Generator().manual_seed(lesson.seed)).argsort(1)
        for lesson in lessons
    ]
    together = torch.stack(orders, dim=1).to(device)
    return [rows for epoch in together for rows in epoch.split(size, dim=1)]


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1)


def _wider(matrix: Tensor, columns: int) -> Tensor:
    return nn.functional.pad(matrix, (0, columns - matrix.shape[1]))


def _net(W: Tensor, V: Tensor, c: Tensor, relu: bool) -> nn.Sequential:
    with torch.device("meta"):
        first, last = nn.Linear(W.shape[1], W.shape[0], bias=False), nn.Linear(W.shape[0], 1)
    first.weight, last.weight, last.bias = (nn.Parameter(p) for p in (W, V[None], c[None]))
    return nn.Sequential(first, *[nn.ReLU()] * relu, last)
