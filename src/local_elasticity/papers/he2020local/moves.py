"""A.2: how far steps on some images move the predictions at images of two other classes, by KL(before ‖ after)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import local_elasticity as le
from local_elasticity.papers.experiment import Cell, Values
from local_elasticity.statistics.claims import Alternatives
from local_elasticity.statistics.verdicts import rank_tests

SIGNIFICANT = 0.05

PAPER_MEANS = 4.4, 6.6
"""Mean S_rel of the similar and of the other class, with another network and other images."""

SHARE = "share of updates that move the similar class more"
ROWS = {
    "rank-sum p (the paper's ResNet-152: 0.0007)": "rank-sum p",
    "signed-rank p": "signed-rank p",
    SHARE: "share",
    "median S_rel, similar class": "median similar",
    "median S_rel, other class": "median other",
    f"mean S_rel, similar class (the paper: {PAPER_MEANS[0]})": "mean similar",
    f"mean S_rel, other class (the paper: {PAPER_MEANS[1]})": "mean other",
    "median Euclidean distance, similar class": "distance similar",
    "median Euclidean distance, other class": "distance other",
}
"""What a comparison is reported by; the paper's numbers are those of another network and other images."""


@dataclass(frozen=True)
class Moves:
    """KL at every target after a step on every source [n, m], the same over the source's own, NaN where that is not
    resolved, and the Euclidean distances of the images.
    """

    change: np.ndarray
    relative: np.ndarray
    distance: np.ndarray

    @staticmethod
    def of(net: nn.Module, x: Tensor, y: Tensor, targets: Tensor, *, step_size: float, engine: str) -> Moves:
        """Steps on the cross-entropy of (x, y), in evaluation mode."""
        problem = le.Problem.of(net, "cross_entropy")
        response = le.respond(problem, (x, y), targets, update=le.SGD(step_size), engine=engine, progress=False)
        change = old_first(response.target_before, response.target_change)
        relative = le.relative(response, change=old_first)
        distance = torch.cdist(x.flatten(1), targets.flatten(1))
        return Moves(*(matrix.double().cpu().numpy() for matrix in (change, relative, distance)))

    def compared(self, sources: np.ndarray, similar: np.ndarray, other: np.ndarray) -> dict[str, float]:
        """Two groups of targets after steps on a group of sources, all three as masks; Wilcoxon's tests are one-sided,
        over the updates, of the average change in either group.
        """
        rows = sources & ~np.isnan(self.relative).any(1)
        if not rows.any():
            raise ValueError("sources: no step on any of them is resolved")
        a, b = (self.change[rows][:, group].mean(1) for group in (similar, other))
        relative = [self.relative[rows][:, group] for group in (similar, other)]
        distance = [self.distance[rows][:, group] for group in (similar, other)]
        apart, paired = rank_tests(a, b)
        return {
            "rank-sum p": apart,
            "signed-rank p": paired,
            "share": float((a > b).mean()),
            "median similar": float(np.median(relative[0])),
            "median other": float(np.median(relative[1])),
            "mean similar": float(relative[0].mean()),
            "mean other": float(relative[1].mean()),
            "distance similar": float(np.median(distance[0])),
            "distance other": float(np.median(distance[1])),
        }


def old_first(before: Tensor, difference: Tensor) -> Tensor:
    """KL(before ‖ after) from logits and their differences.

    >>> z, d = torch.zeros(2), torch.tensor([0.1, -0.1])
    >>> old_first(z, d) == le.kl(z + d, -d)
    tensor(True)
    """
    return le.kl(before + difference, -difference)


def cells(column: str, compared: Sequence[dict[str, Any]]) -> list[Cell]:
    """The rows of comparisons at several seeds."""
    return [Cell(row, column, None, tuple(one[key] for one in compared)) for row, key in ROWS.items()]


def similar_moves_more(columns: Sequence[str], row: str = SHARE) -> Callable[[Values], Alternatives]:
    """A claim's comparisons: the share of updates that move the similar class more, of each network."""
    return lambda values: [{column: values.of(row, column) for column in columns}]


def means_reversed(columns: Sequence[str]) -> Callable[[Values], Alternatives]:
    """The mean S_rel at the other class over that at the similar one, of each network."""
    names = {key: row for row, key in ROWS.items()}
    return lambda values: [
        {c: values.of(names["mean other"], c) / values.of(names["mean similar"], c) for c in columns}
    ]
