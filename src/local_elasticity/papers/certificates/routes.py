"""The independent routes: autograd's gradient, a fictitious step taken word for word, and the flow by numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from local_elasticity.theory.flow import Array, integrate

Predict = Callable[[Tensor, Tensor], Tensor]
"""(w, x) → f, a number or a vector, for one input."""

Loss = Callable[[Tensor], Tensor]
"""w → a loss over all data."""

PointLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(w, x, y) → the loss at one example."""


def tensor(value: ArrayLike) -> Tensor:
    return torch.as_tensor(np.asarray(value, dtype=np.float64))


def gradient(loss: Loss, w: ArrayLike) -> Array:
    """The gradient of a scalar function by autograd."""
    return torch.func.grad(loss)(tensor(w)).numpy()


@dataclass(frozen=True, eq=False)
class Descent:
    """The gradient flow of any loss, its velocity by autograd: what the closed forms must reproduce."""

    loss: Loss
    rate: float
    start: Array

    def velocity(self, w: Array) -> Array:
        return -self.rate * gradient(self.loss, w)

    def w(self, t: ArrayLike) -> Array:
        return integrate(self, self.start, t)


def stepped(
    predict: Predict, loss: PointLoss, w: ArrayLike, source: tuple[ArrayLike, ArrayLike], target: ArrayLike, eta: float
) -> Array:
    """S_rel by Definition 1, word for word, [n, m]: for each source a step of autograd's gradient, then predictions
    before and after. η = 0 is the limit: the derivative of the predictions along the step.
    """
    now, x, y, v = tensor(w), tensor(source[0]), tensor(source[1]), tensor(target)
    vmap = torch.func.vmap
    steps = -vmap(torch.func.grad(loss), (None, 0, 0))(now, x, y)
    at = lambda step, one: _moved(predict, now, step, one, eta).norm()
    moved = vmap(vmap(at, (None, 0)), (0, None))(steps, v)
    return (moved / vmap(at)(steps, x)[:, None]).numpy()


def _moved(predict: Predict, w: Tensor, step: Tensor, x: Tensor, eta: float) -> Tensor:
    if eta == 0:
        return torch.func.jvp(lambda now: predict(now, x), (w,), (step,))[1]
    return predict(w + eta * step, x) - predict(w, x)


def along(
    predict: Predict,
    loss: PointLoss,
    weights: Array,
    source: tuple[ArrayLike, ArrayLike],
    target: ArrayLike,
    eta: float = 0.0,
) -> Array:
    """`stepped` at each of the weights [t, …], [t, n, m]."""
    return np.stack([stepped(predict, loss, w, source, target, eta) for w in weights])
