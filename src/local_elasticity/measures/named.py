"""Measures by name, the same names everywhere. A callable is taken wherever a name is.

| name                | what it is                                                                 |
|---------------------|----------------------------------------------------------------------------|
| `relative`          | S_rel of the outputs, Euclidean (Definition 1)                             |
| `relative_l1`       | S_rel of the probabilities, L1 (Definition 1 as Dan et al. use it); of plain numbers, L1 |
| `kl`                | S_rel of the predicted distributions (Definition 2)                        |
| `kernel`            | S_ker (He & Su eq. 2.3)                                                    |
| `normalized_kernel` | S_ker over the root of its diagonal (He & Su A.4); sources must be targets |
| `stiffness_cos`     | cosine of loss gradients                                                   |
| `stiffness_sign`    | its sign                                                                   |
| `activation`        | cosine of ReLU patterns                                                    |
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from local_elasticity.engine.response import OfResponse, Response
from local_elasticity.measures.activation import activation
from local_elasticity.measures.change import kl, manhattan
from local_elasticity.measures.kernel import kernel, normalized
from local_elasticity.measures.relative import noise_floor, relative, source_change
from local_elasticity.measures.stiffness import stiffness

OfProblem = Callable[..., Tensor]


def _distribution(response: Response) -> Response:
    return response if response.kind == "numbers" else response.as_probabilities()


def _normalized_kernel(response: Response) -> Tensor:
    if not response.targets_are_sources:
        raise ValueError("measure: normalized_kernel needs the targets to be the sources; leave targets out")
    return normalized(kernel(response))


OF_RESPONSE: dict[str, OfResponse] = {
    "relative": relative,
    "relative_l1": lambda response: relative(_distribution(response), change=manhattan),
    "kl": lambda response: relative(response, change=kl),
    "kernel": kernel,
    "normalized_kernel": _normalized_kernel,
}
"""What needs the response to updates."""

OF_PROBLEM: dict[str, OfProblem] = {
    "stiffness_cos": partial(stiffness, form="cos"),
    "stiffness_sign": partial(stiffness, form="sign"),
    "activation": lambda problem, sources, targets, **options: activation(problem, sources[0], targets, **options),
}
"""What needs the network itself and takes no step: (problem, sources, targets or None, memory=, progress=)."""

OWN_CHANGE: dict[str, OfResponse] = {
    "relative": source_change,
    "relative_l1": lambda response: source_change(_distribution(response), manhattan),
    "kl": lambda response: source_change(response, kl),
}
"""The denominators, for the measures that are ratios."""

OWN_FLOOR: dict[str, OfResponse] = {
    "relative": noise_floor,
    "relative_l1": lambda response: noise_floor(_distribution(response), manhattan),
    "kl": lambda response: noise_floor(response, kl),
}
"""What the denominators had to clear, [n, m]."""


def check_name(measure: str) -> None:
    """Raise a ValueError that lists the names where this is none."""
    if measure not in {**OF_RESPONSE, **OF_PROBLEM}:
        raise ValueError(f"measure: {measure!r} is not one of {', '.join([*OF_RESPONSE, *OF_PROBLEM])}")


def unresolved_share(S: Tensor) -> float:
    """The share of pairs without a value."""
    return float(torch.isnan(S).double().mean())
