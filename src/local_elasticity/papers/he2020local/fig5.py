"""Figure 5: (a) cosine of activation patterns against Euclidean distance, (b) sigmoid nets; the torus in the paper, all
six manifolds here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from local_elasticity.papers.experiment import Findings, Measured, Unit
from local_elasticity.papers.he2020local.simulation import (
    Key,
    Simulation,
    cell,
    correlation_cells,
    correlations,
    draw_panels,
)
from local_elasticity.papers.smallest_effects import LINEAR_CORRELATION, LOCAL_CORRELATION
from local_elasticity.statistics.claims import Claim

MANIFOLDS = ("torus", "folded_boxes", "two_cosines", "double_helix", "two_cycles", "two_spheres")
RELU: tuple[Key, ...] = tuple((name, "relu") for name in MANIFOLDS)
SIGMOID: tuple[Key, ...] = tuple((name, "sigmoid") for name in MANIFOLDS)
PAPER_PATTERNS, PAPER_SIGMOID = {("torus", "relu"): -0.97}, {("torus", "sigmoid"): -0.99}

ELSEWHERE = "The same on the other five manifolds"
PATTERNS = "activation without diagonal"
OF_PATTERNS = "Pearson's correlation of the cosine of activation patterns with Euclidean distance, without the diagonal"
OF_SIGMOID = "Pearson's correlation of S_rel with geodesic distance, without the diagonal"


def _linearly(name: str, sentence: str, keys: Sequence[Key], *, ours: bool = False) -> Claim:
    measure = correlations(keys, PATTERNS)
    return Claim(name, sentence, "Fig. 5 a", OF_PATTERNS, measure, LINEAR_CORRELATION, "below", "fisher", ours=ours)


def _falls(name: str, sentence: str, keys: Sequence[Key], *, ours: bool = False) -> Claim:
    measure = correlations(keys)
    return Claim(name, sentence, "Fig. 5 b", OF_SIGMOID, measure, LOCAL_CORRELATION, "below", "fisher", ours=ours)


class Fig5(Simulation):
    name = "he2020local/fig5"
    title = "Activation patterns of ReLU nets, and S_rel of sigmoid nets, on six manifolds"
    claims = (
        _linearly("patterns", "The cosine of activation patterns falls linearly with Euclidean distance", RELU[:1]),
        _linearly("patterns_elsewhere", ELSEWHERE, RELU[1:], ours=True),
        _falls("sigmoid", "Nets with sigmoid units are locally elastic too", SIGMOID[:1]),
        _falls("sigmoid_elsewhere", ELSEWHERE, SIGMOID[1:], ours=True),
    )
    keys = (*RELU, *SIGMOID)

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        cells = [cell(measured, key, "activation", PAPER_PATTERNS.get(key)) for key in RELU]
        cells += [cell(measured, key, PATTERNS) for key in RELU]
        for key in SIGMOID:
            cells += correlation_cells(measured, key, PAPER_SIGMOID.get(key))
            cells += [cell(measured, key, what) for what in ("mean", "accuracy", "rate")]
        return Findings(cells, figures={"fig5": draw_panels(measured, SIGMOID)})
