"""Figure 4: relative similarity against distance on two cosines, the double helix, two cycles and two spheres.

The paper shows ReLU nets and prints no correlations; linear nets stand beside them, and the spheres as released.
"""

from __future__ import annotations

from collections.abc import Mapping

from local_elasticity.papers.experiment import Claim, Findings, Measured, Unit
from local_elasticity.papers.he2020local.simulation import (
    Key,
    Simulation,
    cell,
    correlation_cells,
    draw_panels,
    judge_local,
)

MANIFOLDS = ("two_cosines", "double_helix", "two_cycles", "two_spheres")
RELU: tuple[Key, ...] = tuple((name, "relu") for name in MANIFOLDS)
LINEAR: tuple[Key, ...] = tuple((name, "linear") for name in MANIFOLDS)
AS_RELEASED: Key = ("two_spheres", "relu bce")

CONFIRMED = {
    key: Claim(key[0], f"S_rel of two-layer ReLU nets falls with distance on the {key[0].replace('_', ' ')} (Fig. 4)")
    for key in RELU
}
SPHERES_RELEASED = Claim("two_spheres_released", "The same on the spheres as the released code trains them, with BCE")


class Fig4(Simulation):
    name = "he2020local/fig4"
    title = "S_rel against distance on four more pairs of manifolds"
    claims = (*CONFIRMED.values(), SPHERES_RELEASED)
    keys = (*RELU, *LINEAR, AS_RELEASED)

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        cells = []
        for key in self.keys:
            cells += correlation_cells(measured, key, None)
            cells += [cell(measured, key, what) for what in ("mean", "accuracy", "rate")]
        claims = [judge_local(claim, measured, [key]) for key, claim in CONFIRMED.items()]
        claims.append(judge_local(SPHERES_RELEASED, measured, [AS_RELEASED]))
        return Findings(cells, claims, figures={"fig4": draw_panels(measured, self.keys, 3)})
