"""A fine-tune in a private copy: weights, moments and counters really move; the model and the optimizer do not."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from local_elasticity.engine.inputs import count, spread, take
from local_elasticity.engine.job import predictions
from local_elasticity.engine.nonlinearity import derivative_along
from local_elasticity.engine.problem import BoundProblem, Inputs, leaves_of
from local_elasticity.engine.replica import Params
from local_elasticity.engine.update import SGD, FromOptimizer, Update, stepped_by, walking_rule

AT_ONCE = 256
"""Examples in one forward pass."""

ROWS_BY_EXAMPLE = 64
"""Up to so many examples SGD is extrapolated from the step on each of them; beyond, from the step on each batch."""

LARGEST_SHARE = 2.0
"""A gradient is taken to grow to at most this multiple of the one that was measured."""

READ_AT = 8
"""Examples at which the nonlinearity of a step is read."""


def batches(n: int, batch_size: int | None, steps: int) -> list[slice]:
    """Which of n examples each step is taken on: in the order given, over and over, the last batch may be smaller.

    >>> batches(5, 2, 4)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None), slice(0, 2, None)]
    """
    size = n if batch_size is None else min(batch_size, n)
    once = [slice(i, min(i + size, n)) for i in range(0, n, size)]
    return [once[step % len(once)] for step in range(steps)]


class FineTune:
    """Steps on labelled batches, one after another, from the weights of a bound problem."""

    def __init__(self, bound: BoundProblem, update: Update, output_shape: tuple[int, ...]) -> None:
        self.output_shape = output_shape
        self.bound = bound.stepping(stepped_by(update, bound.problem))
        self.params: Params = {name: p.detach().clone() for name, p in self.bound.params.items()}
        self._rule = walking_rule(update, self.bound)
        self.update = update
        self._taken = 0
        self._reached = isinstance(update, FromOptimizer)

    def step(self, inputs: Inputs, labels: Tensor) -> None:
        """Take one step on a batch."""
        found = self._gradient(inputs, labels)
        with torch.no_grad():
            start = self.bound.left_by_forward(self.params)
            moved = self._rule.step(start, found)
            self.params = {name: p + moved[name] if name in moved else p for name, p in start.items()}
        self._taken += 1

    def displacement(self, inputs: Inputs, labels: Tensor) -> Params:
        """What the next step would move if it were taken on this batch; nothing moves."""
        found = self._gradient(inputs, labels)
        with torch.no_grad():
            return self._rule.ahead(self.params, found)

    def predict(self, inputs: Inputs, moved: Params | None = None) -> Tensor:
        """Predictions [b, k] at the present weights, or at those displaced."""
        moved = moved or {}
        with torch.no_grad():
            params = {name: p + moved[name] if name in moved else p for name, p in self.params.items()}
        return predictions(self.bound, params, inputs, AT_ONCE)

    def nonlinearity(self, inputs: Inputs, moved: Params) -> float:
        """‖R − JΔ‖ / ‖JΔ‖ of a displacement, read at a few of the inputs; NaN where the network has no such derivative
        or does not move."""
        few = take(inputs, spread(count(inputs), READ_AT, self.bound.device))
        limit = derivative_along(self.bound, self.params, moved, few)
        if limit is None or not float(limit.norm()) > 0:
            return math.nan
        off = self.predict(few, moved) - self.predict(few) - limit
        found = float(off.norm() / limit.norm())
        return found if math.isfinite(found) else math.inf

    def extrapolated(self, inputs: Inputs, labels: Tensor, batch_size: int | None, steps: list[slice]) -> Params:
        """The displacement that so many more steps make, from the step on each example or each batch at the present
        weights.

        Row r is the share of one such step that a batch takes, with displacement Δ_r and response R_r at the examples.
        The steps that remain are walked in the space of outputs: f = f₀ + Σ_r c_r R_r. A step adds to c_r the share
        that is left of what its gradient ∂ℓ/∂f had of row r, its projection on the gradient that was measured there;
        the loss of a batch need not be the mean over its examples. Learned examples therefore stop moving the weights.
        The displacement is Σ_r c_r Δ_r. Rules whose displacement is linear in the gradient have rows of examples and a
        momentum that c_r follows; what they move without a gradient is a row of its own.
        """
        n = count(inputs)
        size = n if batch_size is None else min(batch_size, n)
        linear = _Linear.of(self.update, self._taken)
        by_example = linear is not None and n <= ROWS_BY_EXAMPLE
        epoch = batches(n, batch_size, -(-n // size))
        rows = [slice(i, i + 1) for i in range(n)] if by_example else epoch
        drift = self._drift() if linear is not None else {}
        before = self.predict(inputs)
        measured = torch.cat([self._loss_gradient(before, labels, row) for row in rows])

        def shares(step: slice, outputs: Tensor) -> Tensor:
            return _shares(self._loss_gradient(outputs, labels, step), measured, step, rows)

        first = torch.stack([shares(step, before) for step in epoch]).sum(0)  # every row is in one batch

        def moved_by(row: slice, share: float) -> Params:
            moved = self.displacement(take(inputs, row), labels[row])
            return {name: share * (m - drift[name] if name in drift else m) for name, m in moved.items()}

        each = list(zip(rows, first.tolist(), strict=True))
        responses = torch.stack([self.predict(inputs, moved_by(*one)) - before for one in each])
        linear = linear or _Linear()
        drifts = self.predict(inputs, drift) - before
        weights, of_drift = before.new_zeros(len(rows)), 0.0
        velocity = torch.zeros_like(weights)
        for t, step in enumerate(steps):
            outputs = before + torch.einsum("r,rnk->nk", weights, responses) + of_drift * drifts
            added = linear.bounded(shares(step, outputs) / first)
            velocity = linear.momentum * velocity + added
            weights = weights + linear.moved(added, velocity)
            of_drift += linear.drift(t)
        total = {name: of_drift * m for name, m in drift.items()}
        for one, weight in zip(each, weights.tolist(), strict=True):
            if weight:
                for name, m in moved_by(*one).items():
                    total[name] = total[name] + weight * m if name in total else weight * m
        return total

    def _drift(self) -> Params:
        """What a step with a gradient of zero moves."""
        with torch.no_grad():
            return self._rule.ahead(self.params, {name: torch.zeros_like(p) for name, p in self.params.items()})

    def _loss_gradient(self, predictions: Tensor, labels: Tensor, rows: slice) -> Tensor:
        """∂ℓ/∂f of the loss of a batch of these, [b, k]."""
        outputs = predictions[rows].reshape(-1, *self.output_shape)
        return self.bound.loss_gradients(outputs, labels[rows][None])[0]

    def _gradient(self, inputs: Inputs, labels: Tensor) -> Params:
        return self.bound.step_gradient(leaves_of(self.params), inputs, labels, reached=self._reached)[2]


def _shares(now: Tensor, measured: Tensor, step: slice, rows: list[slice]) -> Tensor:
    """What the gradient of a step has of every row, [r]: its projection on the gradient that was measured there, as a
    share of that; 0 for rows not in the step."""
    found = now.new_zeros(len(rows))
    for r, row in enumerate(rows):
        if step.start <= row.start and row.stop <= step.stop:
            there, here = measured[row], now[row.start - step.start : row.stop - step.start]
            found[r] = (here * there).sum() / there.square().sum()
    return found.nan_to_num(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class _Linear:
    """A rule whose displacement is linear in the gradient: SGD, with its momentum. `carried` says whether it has
    momentum of earlier steps."""

    momentum: float = 0.0
    nesterov: bool = False
    carried: bool = False

    @classmethod
    def of(cls, update: Update, taken: int = 0) -> _Linear | None:
        """After so many steps that were taken here; None for a rule that is not linear."""
        if isinstance(update, SGD):
            return cls()
        if not isinstance(update, FromOptimizer) or type(update.optimizer) is not torch.optim.SGD or update.clips:
            return None
        options = {(float(g["momentum"]), bool(g["nesterov"]), g["dampening"]) for g in update.optimizer.param_groups}
        if len(options) > 1 or any(dampening for _, _, dampening in options):
            return None
        momentum, nesterov, _ = options.pop()
        return cls(momentum, nesterov, carries_moments(update) or (taken > 0 and momentum > 0))

    def bounded(self, shares: Tensor) -> Tensor:
        """Shares of gradients that are left; 0 where there was none at first."""
        least = -LARGEST_SHARE if self.momentum else 0.0
        return shares.clamp(least, LARGEST_SHARE).nan_to_num(0.0)

    def moved(self, added: Tensor, velocity: Tensor) -> Tensor:
        """How far a step moves along each row."""
        return (added + self.momentum * velocity) / (1 + self.momentum) if self.nesterov else velocity

    def drift(self, t: int) -> float:
        """How far the t-th step moves along the drift: momentum fades; decay, where there is none, builds up."""
        if self.carried:
            return self.momentum**t
        return (1 - self.momentum ** (t + 1)) / (1 - self.momentum)


def is_linear(update: Update) -> bool:
    """Whether displacements are linear in the gradient."""
    return _Linear.of(update) is not None


def carries_moments(update: Update) -> bool:
    """Whether a live optimizer carries moments of earlier steps."""
    states = update.optimizer.state.values() if isinstance(update, FromOptimizer) else ()
    names = ("momentum_buffer", "exp_avg")
    return any(isinstance(state.get(name), Tensor) for state in states for name in names)
