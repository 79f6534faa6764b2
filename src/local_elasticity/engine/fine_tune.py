"""A fine-tune in a private copy: weights, moments and counters really move; the model and the optimizer do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from local_elasticity.engine.derivatives import derivative_along
from local_elasticity.engine.inputs import count, spread, take
from local_elasticity.engine.job import predictions
from local_elasticity.engine.problem import BoundProblem, Inputs, gradient, leaves_of
from local_elasticity.engine.replica import Params
from local_elasticity.engine.update import SGD, FromOptimizer, Update, stepped_by, walking_rule

AT_ONCE = 256
"""Examples in one forward pass."""

DIRECTIONS = 8
"""Loss gradients of a batch from which its steps are extrapolated: the present one, and those it turns to. More changed
little in the networks tried. Each costs about as much as three steps, and there are at most half as many as steps."""

DIRECTIONS_IN_ALL = 64
"""Of all batches together; the first of each batch is always among them."""

SMALLEST_SHARE = 1e-6
"""Combinations of directions that move the outputs by less than this share of what the largest does are left out."""

LARGEST_SHARE = 2.0
"""A step of a rule that is not linear is taken to grow to at most this multiple of the one that was measured."""

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

    def extrapolated(self, inputs: Inputs, labels: Tensor, steps: list[slice]) -> Params:
        """The displacement that so many more steps make, as the network linearized at the present weights takes them.

        They are walked in the space of the new examples' outputs: f = f₀ + Σ_d c_d R_d. R_d is the response to a step
        whose loss gradient ∂ℓ/∂f is the direction d. Every step adds to c_d what of d is in the loss gradient at f, so
        learned examples stop moving the weights. The first direction of a batch is its present loss gradient. That one
        is not enough: as an example leaves the class that was predicted, its loss gradient turns to other classes. The
        sum of what a walk misses is the next direction, and the steps are walked again.

        This needs a rule whose displacement is linear in the gradient (`_Linear`). c_d has its momentum, and its drift
        is a response of its own. Other rules (Adam) keep one direction for each batch, and the step along it.
        """
        inputs, labels, steps = _in_use(inputs, labels, steps)
        linear = _Linear.of(self.update, self._taken)
        drift = self._drift() if linear is not None else {}

        def moved_by(batch: slice, along: Tensor) -> Params:
            moved = self._rule.ahead(self.params, self._pulled_back(take(inputs, batch), along))
            return {name: m - drift[name] if name in drift else m for name, m in moved.items()}

        before = self.predict(inputs)
        walk = _Walk(partial(self._loss_gradient, labels), steps, before, self._response(inputs, drift), linear)
        while wanted := walk.wanted():
            walk.walk(wanted, [self._response(inputs, moved_by(*pair)) for pair in wanted])
        of_drift, taken = walk.moves()
        total = {name: of_drift * m for name, m in drift.items()}
        for batch, along, weight in taken:
            for name, m in moved_by(batch, along).items():
                total[name] = total[name] + weight * m if name in total else weight * m
        return total

    def _response(self, inputs: Inputs, moved: Params) -> Tensor:
        """The change of predictions [b, k] by a small displacement; by this one where the network has no derivative."""
        limit = derivative_along(self.bound, self.params, moved, inputs) if moved else None
        return self.predict(inputs, moved) - self.predict(inputs) if limit is None else limit

    def _drift(self) -> Params:
        """What a step with a gradient of zero moves."""
        with torch.no_grad():
            return self._rule.ahead(self.params, {name: torch.zeros_like(p) for name, p in self.params.items()})

    def _loss_gradient(self, labels: Tensor, predictions: Tensor, batch: slice) -> Tensor:
        """∂ℓ/∂f of a batch, [b, k], at predictions [n, k] of all examples."""
        rows = predictions[batch]
        return self.bound.loss_gradients(rows.reshape(len(rows), *self.output_shape), labels[batch][None])[0]

    def _gradient(self, inputs: Inputs, labels: Tensor) -> Params:
        return self.bound.step_gradient(leaves_of(self.params), inputs, labels, reached=self._reached)[2]

    def _pulled_back(self, inputs: Inputs, along: Tensor) -> Params:
        """Σ along · ∂f/∂w: the gradient of the step whose loss gradient this is."""
        leaves = leaves_of(self.params)
        with torch.enable_grad():
            outputs = self.bound.outputs(leaves, inputs)
        return gradient(outputs, leaves, along.view_as(outputs), reached=self._reached)


def _in_use(inputs: Inputs, labels: Tensor, steps: list[slice]) -> tuple[Inputs, Tensor, list[slice]]:
    """The examples that some step is taken on, and where the steps find their batches among them."""
    rows: list[int] = []
    places: dict[int, slice] = {}
    for step in steps:
        if step.start not in places:
            places[step.start] = slice(len(rows), len(rows) + step.stop - step.start)
            rows += range(step.start, step.stop)
    kept = torch.tensor(rows, device=labels.device)
    return take(inputs, kept), labels[kept], [places[step.start] for step in steps]


class _Walk:
    """Steps in the space of outputs, along a few directions: loss gradients [n, k] that are 0 outside of one batch.

    Args:
        loss_gradient: (outputs [n, k], a batch) → ∂ℓ/∂f of this batch, [b, k].
        steps: the batch of each step.
        before: the outputs, [n, k]. `drift`: their response to the drift of one step.
        linear: the rule; None where it is not linear.
    """

    def __init__(
        self,
        loss_gradient: Callable[[Tensor, slice], Tensor],
        steps: list[slice],
        before: Tensor,
        drift: Tensor,
        linear: _Linear | None,
    ) -> None:
        self._loss_gradient, self._steps, self._before, self._drift = loss_gradient, steps, before, drift
        self._linear = linear
        self._drifted = list(accumulate((linear or _Linear()).drift(t) for t in range(len(steps))))
        self._batches = list({step.start: step for step in steps}.values())
        self._missed = torch.cat([loss_gradient(before, batch) for batch in self._batches])
        self._lengths = [self._missed[batch].norm() for batch in self._batches]
        self._along = self._responses = before.new_zeros(0, *before.shape)
        self._weights, self._taken_on = before.new_zeros(0), list[slice]()
        most = min(DIRECTIONS, DIRECTIONS_IN_ALL // len(self._batches), -(-len(steps) // (2 * len(self._batches))))
        self._rounds = 1 if linear is None else max(1, most)

    def wanted(self) -> list[tuple[slice, Tensor]]:
        """Batches and the directions to add, [b, k]; none where nothing is missing or enough were added."""
        self._rounds -= 1
        found = []
        for batch, length in zip(self._batches, self._lengths, strict=True):
            missed = self._missed[batch]
            if self._rounds >= 0 and missed.norm() > torch.finfo(missed.dtype).eps ** 0.5 * length:
                found.append((batch, missed * (length / missed.norm())))
        return found

    def walk(self, more: list[tuple[slice, Tensor]], responses: list[Tensor]) -> None:
        """Take all steps, along these directions too, with the responses [n, k] to them."""
        along = self._before.new_zeros(len(more), *self._before.shape)
        for place, (batch, direction) in zip(along, more, strict=True):
            place[batch] = direction
        self._taken_on += [batch for batch, _ in more]
        self._along = torch.cat([self._along, along])
        self._responses = torch.cat([self._responses, torch.stack(responses)])
        linear, reader = self._linear or _Linear(), self._reader()
        weights = velocity = self._before.new_zeros(len(self._along))
        self._missed = torch.zeros_like(self._before)
        for t, step in enumerate(self._steps):
            drifted = self._drifted[t - 1] if t else 0.0
            outputs = self._before + torch.einsum("r,rnk->nk", weights, self._responses) + drifted * self._drift
            found = self._loss_gradient(outputs, step)
            added = torch.einsum("rbk,bk->r", reader[:, step], found)
            if self._linear is None:
                added = added.clamp(0, LARGEST_SHARE)
            self._missed[step] += found
            self._missed -= torch.einsum("r,rnk->nk", added, self._along)
            velocity = linear.momentum * velocity + added
            weights = weights + linear.moved(added, velocity)
        self._weights = weights

    def moves(self) -> tuple[float, list[tuple[slice, Tensor, float]]]:
        """How far the steps move along the drift; and batches with a loss gradient each, and how many times its step is
        taken."""
        if self._linear is None:
            rows = zip(self._taken_on, self._along, self._weights.tolist(), strict=True)
            return 0.0, [(batch, along[batch], weight) for batch, along, weight in rows]
        total = torch.einsum("r,rnk->nk", self._weights, self._along)
        return self._drifted[-1], [(batch, total[batch], 1.0) for batch in self._batches]

    def _reader(self) -> Tensor:
        """[r, n, k], whose product with a loss gradient g is how much of each direction D is in its step.

        A linear rule moves the weights by AJᵀg, and the outputs by Kg, K = JAJᵀ. What is in its step is the projection
        on the displacements of the directions, (DᵀKD)⁻¹DᵀKg. The loss then falls along the walk as it does in the
        linearized network; with the projection of g on D it may rise. Other rules have that one.
        """
        if self._linear is None:
            return self._along / self._along.square().sum((1, 2), keepdim=True)
        gram = -torch.einsum("rnk,snk->rs", self._along.double(), self._responses.double())
        values, vectors = torch.linalg.eigh(torch.nan_to_num(gram + gram.T) / 2)
        inverse = torch.where(values > SMALLEST_SHARE * values[-1], 1 / values, 0)
        inverted = ((vectors * inverse) @ vectors.T).to(self._before)
        return -torch.einsum("rs,snk->rnk", inverted, self._responses)


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
