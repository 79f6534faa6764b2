"""Figure 1 (b), (c), (e), (f): relative similarity against geodesic distance, on the torus and the folded boxes.

The published correlations are those of the whole matrix, diagonal included, with the angle for the distance on the
torus and 11 for the half-width 13/1.2 of the boxes; the text's distances, and the pairs without the diagonal, stand
beside them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from local_elasticity.papers.experiment import Claim, Findings, Measured, Unit
from local_elasticity.papers.he2020local.simulation import (
    WITH_IT,
    WITHOUT,
    Key,
    Simulation,
    cell,
    correlation_cells,
    draw_panels,
    judge_local,
    printed,
    values,
)

PAPER: dict[Key, float] = {
    ("torus", "relu"): -0.97,
    ("torus", "linear"): -0.48,
    ("folded_boxes", "relu"): -0.92,
    ("folded_boxes", "linear"): -0.14,
}
"""Pearson's correlations, from the caption."""

PAPER_MEAN: dict[Key, float] = {("torus", "relu"): 0.44, ("torus", "linear"): 0.68}
"""Mean S_rel on the torus, from A.4."""

RELU_LOCAL = Claim("local", "S_rel falls with geodesic distance for ReLU nets: they are locally elastic (Fig. 1 b, e)")
NOT_LINEAR = Claim("not_linear", "Linear nets of the same size show no such monotonic relation (Fig. 1 c, f)")
MORE_LOCAL = Claim("mean", "The average S_rel on the torus is smaller for ReLU than for linear nets (A.4)")


class Fig1(Simulation):
    name = "he2020local/fig1"
    title = "S_rel against geodesic distance on the torus and the folded boxes, ReLU and linear nets"
    claims = (RELU_LOCAL, NOT_LINEAR, MORE_LOCAL)
    keys = tuple(PAPER)

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        cells = []
        for key, paper in PAPER.items():
            cells += correlation_cells(measured, key, paper)
            cells += [cell(measured, key, what) for what in ("accuracy", "rate")]
        cells += [cell(measured, key, "mean", paper) for key, paper in PAPER_MEAN.items()]
        return Findings(cells, _judge(measured), figures={"fig1": draw_panels(measured, self.keys, 2)})


def _judge(measured: Mapping[Unit, Measured]) -> list[Claim]:
    manifolds = [name for name, net in PAPER if net == "relu"]
    gaps = {name: _gaps(measured, name, WITHOUT) for name in manifolds}
    paper_gaps = {name: PAPER[name, "linear"] - PAPER[name, "relu"] for name in manifolds}
    weaker = [gap > 0.2 for found in gaps.values() for gap in found]
    said = "; ".join(f"{name.replace('_', ' ')}: weaker by {np.mean(gap):.2f}" for name, gap in gaps.items())
    mean = _gaps(measured, "torus", "mean")
    relu, linear = (np.mean(values(measured, ("torus", net), "mean")) for net in ("relu", "linear"))
    return [
        judge_local(RELU_LOCAL, measured, [(name, "relu") for name in manifolds], PAPER),
        NOT_LINEAR.judged(
            weaker,
            [gap for found in gaps.values() for gap in found],
            f"correlation weaker by 0.2 or more in {sum(weaker)} of {len(weaker)} runs; {said}{WITH_IT}",
            printed(paper_gaps, gaps),
        ),
        MORE_LOCAL.judged(
            [gap > 0 for gap in mean],
            mean,
            f"ReLU {relu:.2f}, linear {linear:.2f}",
            PAPER_MEAN["torus", "linear"] - PAPER_MEAN["torus", "relu"],
        ),
    ]


def _gaps(measured: Mapping[Unit, Measured], name: str, what: str) -> list[float]:
    """Linear less ReLU, seed by seed."""
    relu, linear = (values(measured, (name, net), what) for net in ("relu", "linear"))
    return [b - a for a, b in zip(relu, linear, strict=False)]
