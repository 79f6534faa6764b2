"""He & Su's relative similarity on classes never trained on: one step on an unseen example, read within and across."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from local_elasticity.emergence.checks import check_finite, checked_labels
from local_elasticity.emergence.two_layer import TwoLayer
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.respond import respond
from local_elasticity.engine.update import SGD, Update
from local_elasticity.measures.relative import relative
from local_elasticity.statistics.locality import locality, quotient


@dataclass(frozen=True)
class WithinAndBetween:
    """Median S_rel over pairs of different examples of one class, and over pairs of two classes; the share of pairs
    without a value."""

    within: float
    between: float
    unresolved: float

    @property
    def locality(self) -> float:
        """between / within, as `le.locality` has it: below 1 the network is locally elastic on these classes."""
        return float(quotient(self.between, self.within))

    @property
    def ratio(self) -> float:
        """Deprecated: within / between, the inverse of `locality`."""
        warnings.warn("ratio: use locality, which is between / within everywhere", DeprecationWarning, stacklevel=2)
        return self.within / self.between


def relative_on_unseen(
    network: TwoLayer | Problem, x: Tensor, labels: Tensor, *, y: Tensor | None = None, update: Update | None = None
) -> WithinAndBetween:
    """S_rel(x, x′) = |f⁺(x′) − f(x′)| / |f⁺(x) − f(x)| after a step on one unseen x, through the engine.

    Args:
        network: a `TwoLayer`, whose W is stepped on ½(y − f)², or any `Problem`.
        x: unseen examples, [n, …]; `labels`: their classes, two or more, [n].
        y: what each example is stepped towards; for a `TwoLayer` and two classes −1 and 1 by default.
        update: the step; for a `TwoLayer` SGD with η = √N by default.

    >>> from local_elasticity.emergence.designs import unseen_classes
    >>> network = TwoLayer.random(inputs=16, width=64)
    >>> classes = unseen_classes("II", 1.0, torch.eye(16, dtype=torch.float64)[0], per_class=10, distance=6.0)
    >>> relative_on_unseen(network, classes.x, classes.labels).locality < 1
    True
    """
    check_finite("x", x)
    classes = checked_labels(labels, len(x))
    names = classes.unique()
    if len(names) < 2:
        raise ValueError("labels: within and between need at least two classes")
    if y is None:
        if not isinstance(network, TwoLayer) or len(names) != 2:
            raise ValueError("y: say what each example is stepped towards; only two classes of a TwoLayer have ±1")
        y = torch.where(classes == names[1], 1.0, -1.0).to(x.dtype)
    if isinstance(network, TwoLayer):
        x, y = x.to(network.W.dtype), y.to(network.W.dtype)
        update = update or SGD(math.sqrt(network.width))
        network = Problem.of(network.module(), "half_mse")
    if update is None:
        raise ValueError("update: name the step, for example le.SGD(1e-3)")
    S = relative(respond(network, (x, y), update=update, progress=False)).cpu()
    found = locality(S, classes.cpu(), resamples=0, permutations=0)
    return WithinAndBetween(found.within, found.between, found.unresolved)
