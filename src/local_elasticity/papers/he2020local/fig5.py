"""Figure 5: (a) cosine of activation patterns against Euclidean distance, (b) sigmoid nets; the torus in the paper, all
six manifolds here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from local_elasticity.papers.experiment import Claim, Findings, Measured, Unit
from local_elasticity.papers.he2020local.simulation import (
    WITH_IT,
    Key,
    Simulation,
    cell,
    correlation_cells,
    draw_panels,
    judge_local,
    printed,
    values,
)

MANIFOLDS = ("torus", "folded_boxes", "two_cosines", "double_helix", "two_cycles", "two_spheres")
RELU: tuple[Key, ...] = tuple((name, "relu") for name in MANIFOLDS)
SIGMOID: tuple[Key, ...] = tuple((name, "sigmoid") for name in MANIFOLDS)
PAPER_PATTERNS, PAPER_SIGMOID = {("torus", "relu"): -0.97}, {("torus", "sigmoid"): -0.99}
NEARLY_LINEAR = -0.9

PATTERNS = Claim(
    "patterns", "The cosine of activation patterns falls linearly with Euclidean distance (Fig. 5 a), torus"
)
PATTERNS_ELSEWHERE = Claim("patterns_elsewhere", "The same on the other five manifolds")
SIGMOID_LOCAL = Claim("sigmoid", "Nets with sigmoid units are locally elastic too (Fig. 5 b), torus")
SIGMOID_ELSEWHERE = Claim("sigmoid_elsewhere", "The same on the other five manifolds")


class Fig5(Simulation):
    name = "he2020local/fig5"
    title = "Activation patterns of ReLU nets, and S_rel of sigmoid nets, on six manifolds"
    claims = (PATTERNS, PATTERNS_ELSEWHERE, SIGMOID_LOCAL, SIGMOID_ELSEWHERE)
    keys = (*RELU, *SIGMOID)

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        cells = [cell(measured, key, "activation", PAPER_PATTERNS.get(key)) for key in RELU]
        cells += [cell(measured, key, "activation without diagonal") for key in RELU]
        for key in SIGMOID:
            cells += correlation_cells(measured, key, PAPER_SIGMOID.get(key))
            cells += [cell(measured, key, what) for what in ("mean", "accuracy", "rate")]
        claims = [
            _judge_patterns(PATTERNS, measured, RELU[:1], PAPER_PATTERNS),
            _judge_patterns(PATTERNS_ELSEWHERE, measured, RELU[1:]),
            judge_local(SIGMOID_LOCAL, measured, SIGMOID[:1], PAPER_SIGMOID),
            judge_local(SIGMOID_ELSEWHERE, measured, SIGMOID[1:]),
        ]
        return Findings(cells, claims, figures={"fig5": draw_panels(measured, SIGMOID, 3)})


def _judge_patterns(
    claim: Claim, measured: Mapping[Unit, Measured], keys: tuple[Key, ...], paper: Mapping[Key, float] | None = None
) -> Claim:
    """Nearly on a line: Pearson's correlation without the diagonal below −0.9."""
    found = {key: values(measured, key, "activation without diagonal") for key in keys}
    every = [value for seen in found.values() for value in seen]
    said = "; ".join(f"{name.replace('_', ' ')} {np.mean(seen):.2f}" for (name, _), seen in found.items() if seen)
    evidence = (
        f"correlation below {NEARLY_LINEAR} in {sum(v < NEARLY_LINEAR for v in every)} of {len(every)} runs; {said}"
        f"{WITH_IT if paper else ''}"
    )
    return claim.judged([v < NEARLY_LINEAR for v in every], every, evidence, printed(paper, found))
