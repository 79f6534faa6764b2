"""A.2: how far steps on some images move the predictions at images of two other classes, by KL(before ‖ after)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import local_elasticity as le
from local_elasticity.papers.experiment import Cell, Claim
from local_elasticity.statistics.verdicts import rank_tests

SIGNIFICANT = 0.05

PAPER_MEANS = 4.4, 6.6
"""Mean S_rel of the similar and of the other class, with another network and other images."""

ROWS = {
    "rank-sum p (the paper's ResNet-152: 0.0007)": "rank-sum p",
    "signed-rank p": "signed-rank p",
    "share of updates that move the similar class more": "share",
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


def judge_similar(claim: Claim, compared: Sequence[dict[str, Any]]) -> Claim:
    """That the similar class moves more, significantly so in every comparison; the effect is the share of updates."""
    outcomes = [one["rank-sum p"] < SIGNIFICANT for one in compared]
    paired = sum(one["signed-rank p"] < SIGNIFICANT for one in compared)
    shares = [one["share"] for one in compared]
    evidence = (
        f"the similar class moves more after {100 * np.mean(shares):.0f} % of updates; rank-sum p < {SIGNIFICANT} in "
        f"{sum(outcomes)} of {len(outcomes)} comparisons, signed-rank in {paired}; largest rank-sum p "
        f"{max(one['rank-sum p'] for one in compared):.2g}"
    )
    return claim.judged(outcomes, shares, evidence)


def judge_means(claim: Claim, compared: Sequence[dict[str, Any]]) -> Claim:
    """That means of S_rel order the classes the other way than the changes do; medians beside them."""
    outcomes = [one["mean similar"] < one["mean other"] for one in compared]
    words = [f"{key} {np.median([one[key] for one in compared]):.3g}" for key in list(ROWS.values())[3:7]]
    gaps = [one["mean similar"] - one["mean other"] for one in compared]
    evidence = f"in {sum(outcomes)} of {len(outcomes)} runs; {', '.join(words)}"
    return claim.judged(outcomes, gaps, evidence, PAPER_MEANS[0] - PAPER_MEANS[1], average=median)
