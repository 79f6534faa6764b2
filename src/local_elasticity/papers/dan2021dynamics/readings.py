"""S_rel as the paper defines it, and as the released notebooks compute it: functions of a `Response`.

The notebooks hand probabilities to `F.kl_div` where it expects log-probabilities, so that their "KL" is
−(H(q) + ⟨q, p⟩)/k, with q before and p after the step: it does not vanish where nothing moves. Their Definition 1 has
an L1 mean above and a root mean square below. Both add ε to the denominator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import local_elasticity as le
from local_elasticity.engine.response import Response
from local_elasticity.statistics.bootstrap import Reduction
from local_elasticity.statistics.class_pairs import SelfPairs, pair_rows
from local_elasticity.statistics.locality import locality

EPSILON = 1e-8
"""What the notebooks add to denominators."""


def kl(response: Response) -> Tensor:
    """Definition 2."""
    return le.relative(response, change=le.kl)


def root_kl(response: Response) -> Tensor:
    """√Definition 2: KL is quadratic in small changes, its root is not, and so compares with Definition 1."""
    return kl(response).sqrt()


def l1(response: Response) -> Tensor:
    """Definition 1 of the softmax, in the 1-norm, as the paper reports it."""
    return le.relative(response.as_probabilities(), change=le.manhattan)


def l2(response: Response) -> Tensor:
    """Definition 1 of the softmax, in the 2-norm."""
    return le.relative(response.as_probabilities())


def logits(response: Response) -> Tensor:
    """Definition 1 of the network's outputs themselves, in the 1-norm."""
    return le.relative(response, change=le.manhattan)


def released_kl(response: Response) -> Tensor:
    """Definition 2 as released.

    >>> import torch, local_elasticity as le
    >>> net = torch.nn.Linear(2, 3)
    >>> _ = torch.nn.init.zeros_(net.weight), torch.nn.init.zeros_(net.bias)
    >>> problem = le.Problem.of(net, "cross_entropy")
    >>> response = le.respond(problem, (torch.eye(2), torch.tensor([0, 1])), update=le.SGD(1e-6))
    >>> released_kl(response).round(decimals=3)  # nothing moved, and yet
    tensor([[1., 1.],
            [1., 1.]])
    """
    above = _kl_of_probabilities(response.target_before, response.target_after)
    below = _kl_of_probabilities(response.source_before, response.source_after)
    return above / (below + EPSILON)[:, None]


def released_l1(response: Response) -> Tensor:
    """Definition 1 as released; S(x, x) is not 1."""
    probabilities = response.as_probabilities()
    above = probabilities.target_change.abs().mean(-1)
    below = probabilities.source_change.square().mean(-1).sqrt()
    return above / (below + EPSILON)[:, None]


def _kl_of_probabilities(before: Tensor, after: Tensor) -> Tensor:
    """F.kl_div(softmax(after), softmax(before)) with its mean over the k outputs: −(H(q) + ⟨q, p⟩)/k."""
    q, p = before.softmax(-1), after.softmax(-1)
    return (torch.special.xlogy(q, q) - q * p).mean(-1)


DEFINED: tuple[Callable[[Response], Tensor], ...] = (kl, root_kl, l1, l2, logits)
MEASURES = (*DEFINED, released_kl, released_l1)

REDUCTIONS = ("mean", "median apart")
"""By pair of classes: Definition 3 (all k² pairs, self-pairs included); the median without self-pairs."""


def smoothed(S: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """One number for every pair of classes under each reduction, [classes, classes], rows are sources; and the medians
    over all pairs of one class (`within`) and of different classes (`between`), self-pairs left out.

    >>> import numpy as np
    >>> found = smoothed(np.array([[1.0, 0.5, 0.2], [0.7, 1.0, 0.4], [0.3, 0.1, 1.0]]), np.array([0, 0, 1]))
    >>> found["median apart"], found["within"], found["between"]
    ([[0.6, 0.3], [0.2, None]], 0.6, 0.25)
    """
    read, classes = (S, labels, labels, None, True), len(np.unique(labels))

    def table(reduce: Reduction, self_pairs: SelfPairs) -> list[list[float | None]]:
        values = [rounded(row[2]) for row in pair_rows(read, reduce, self_pairs, resamples=0)]
        return [values[i : i + classes] for i in range(0, len(values), classes)]

    whole = locality(read, resamples=0, permutations=0)
    return {
        "mean": table("mean", "include"),
        "median apart": table("median", "exclude"),
        "within": rounded(whole.within),
        "between": rounded(whole.between),
    }


def rounded(value: float) -> float | None:
    """Five significant digits; None where there is no value, since JSON has no NaN.

    >>> rounded(0.123456789), rounded(float("nan"))
    (0.12346, None)
    """
    return float(f"{value:.5g}") if np.isfinite(value) else None
