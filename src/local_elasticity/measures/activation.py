"""Activation similarity (He & Su A.4, Fig. 5): the cosine of two examples' binary ReLU patterns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from local_elasticity.engine.guard import FunctionMode, untouched
from local_elasticity.engine.inputs import count, read_inputs, take
from local_elasticity.engine.job import check_network
from local_elasticity.engine.memory import Footprint, examples_at_once
from local_elasticity.engine.problem import BoundProblem, Problem
from local_elasticity.engine.progress import Progress, ProgressOption
from local_elasticity.measures.measure import Measure
from local_elasticity.shapes import Float


@untouched
def activation(
    model: Problem | nn.Module, x: Any, x2: Any = None, *, memory: int | None = None, progress: ProgressOption = None
) -> Float[Tensor, "n m"]:
    """⟨a(x), a(x′)⟩ / (‖a(x)‖ ‖a(x′)‖), a(x) ∈ {0, 1} marking the ReLU units that are on, of all layers together.

    Every ReLU counts, `nn.ReLU` or a call of a function; NaN for an example that turns no unit on.

    Args:
        model: an `nn.Module`, or a `Problem`.
        x: inputs.
        x2: other inputs; by default x.
        memory: bytes for the forward passes; by default half of what is free.
        progress: as for `respond`, in examples.

    Returns:
        Cosines between 0 and 1, [n, m].

    Raises:
        ValueError: if the model has no ReLU.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
    >>> _ = torch.nn.init.ones_(net[0].weight); _ = torch.nn.init.zeros_(net[0].bias)
    >>> activation(net, torch.tensor([[1.0], [2.0]]))
    tensor([[1., 1.],
            [1., 1.]])
    """
    problem = model if isinstance(model, Problem) else Problem.of(model, "mse", params=".*")
    with problem.bound() as bound:
        left = read_inputs(x, bound.device, bound.dtype, "x")
        right = left if x2 is None else read_inputs(x2, bound.device, bound.dtype, "x2")
        _, size, _ = check_network(bound, left, None if x2 is None else right, ("x", "x2"))
        total = count(left) + (0 if x2 is None else count(right))
        with Progress(total, "examples", progress) as bar:
            one = _patterns(bound, left, size, memory, bar)
            other = one if x2 is None else _patterns(bound, right, size, memory, bar)
        return one @ other.T / (one.sum(1)[:, None] * other.sum(1)).sqrt()


def _patterns(
    bound: BoundProblem, inputs: Any, size: Footprint, memory: int | None, bar: Progress
) -> Float[Tensor, "b units"]:
    at_once = examples_at_once(bound, inputs, size, memory)
    parts = []
    for i in range(0, count(inputs), at_once):
        with torch.no_grad(), _Patterns() as seen:
            bound.outputs(bound.params, take(inputs, slice(i, i + at_once)))
        if not seen.patterns:
            raise ValueError("model: no ReLU was met in its forward pass, so there is no activation pattern")
        parts.append(torch.cat([pattern.flatten(1) for pattern in seen.patterns], dim=1).to(bound.dtype))
        bar.advance(len(parts[-1]))
    return torch.cat(parts)


RELUS = (nn.functional.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_)


class _Patterns(FunctionMode):
    """Notes which units are on, at every ReLU that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.patterns: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in RELUS:
            self.patterns.append(result > 0)
        return result


def _of_inputs(problem: Problem, sources: tuple[Any, Tensor], targets: Any, **options: Any) -> Tensor:
    return activation(problem, sources[0], targets, **options)


ACTIVATION = Measure(
    "activation",
    "how alike two examples switch the network's ReLU units on and off, as a cosine",
    _of_inputs,
    needs="activations",
    symmetric=True,
    order=0,
    axis="cosine of activation patterns",
)
"""The cosine of ReLU patterns."""
