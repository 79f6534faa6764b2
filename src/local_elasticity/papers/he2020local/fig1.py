"""Figure 1 (b), (c), (e), (f): relative similarity against geodesic distance, on the torus and the folded boxes.

The published correlations are those of the whole matrix, diagonal included, with the angle for the distance on the
torus and 11 for the half-width 13/1.2 of the boxes; the text's distances, and the pairs without the diagonal, stand
beside them.
"""

from __future__ import annotations

from collections.abc import Mapping

from local_elasticity.papers.experiment import Findings, Measured, Unit, Values
from local_elasticity.papers.he2020local.simulation import (
    WITHOUT,
    Key,
    Simulation,
    cell,
    correlation_cells,
    correlations,
    draw_panels,
    row_of,
)
from local_elasticity.papers.smallest_effects import ANY_RATIO, LOCAL_CORRELATION, WEAKER_CORRELATION
from local_elasticity.statistics.claims import Alternatives, Claim

PAPER: dict[Key, float] = {
    ("torus", "relu"): -0.97,
    ("torus", "linear"): -0.48,
    ("folded_boxes", "relu"): -0.92,
    ("folded_boxes", "linear"): -0.14,
}
"""Pearson's correlations, from the caption."""

PAPER_MEAN: dict[Key, float] = {("torus", "relu"): 0.44, ("torus", "linear"): 0.68}
"""Mean S_rel on the torus, from A.4."""

MANIFOLDS = [name for name, net in PAPER if net == "relu"]


def _gaps(values: Values) -> Alternatives:
    """The correlation of the linear net less that of the ReLU net."""
    rows = {name: row_of((name, "relu"), WITHOUT) for name in MANIFOLDS}
    return [{name: values.of(row, "linear") - values.of(row, "relu") for name, row in rows.items()}]


def _means(values: Values) -> Alternatives:
    return [{"linear / ReLU": values.of("torus: mean", "linear") / values.of("torus: mean", "relu")}]


CORRELATION = "Pearson's correlation of S_rel with geodesic distance, without the diagonal"


class Fig1(Simulation):
    name = "he2020local/fig1"
    title = "S_rel against geodesic distance on the torus and the folded boxes, ReLU and linear nets"
    claims = (
        Claim(
            "local",
            "S_rel falls with geodesic distance for ReLU nets: the impact diminishes as x′ becomes far from x",
            "Fig. 1 b, e",
            CORRELATION,
            correlations([(name, "relu") for name in MANIFOLDS]),
            LOCAL_CORRELATION,
            "below",
            "fisher",
        ),
        Claim(
            "not_linear",
            "Linear nets of the same size show no such monotonic relation",
            "Fig. 1 c, f",
            "the same correlation, linear less ReLU",
            _gaps,
            WEAKER_CORRELATION,
        ),
        Claim(
            "mean",
            "SGD updates of two-layer neural nets are more local than that of linear ones: mean S_rel 0.44 and 0.68",
            "A.4",
            "mean S_rel on the torus, linear over ReLU",
            _means,
            ANY_RATIO,
            scale="log",
        ),
    )
    keys = tuple(PAPER)

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        cells = []
        for key, paper in PAPER.items():
            cells += correlation_cells(measured, key, paper)
            cells += [cell(measured, key, what) for what in ("accuracy", "rate")]
        cells += [cell(measured, key, "mean", paper) for key, paper in PAPER_MEAN.items()]
        return Findings(cells, figures={"fig1": draw_panels(measured, self.keys)})
