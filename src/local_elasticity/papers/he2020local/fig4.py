"""Figure 4: relative similarity against distance on two cosines, the double helix, two cycles and two spheres.

The paper shows ReLU nets and prints no correlations; linear nets stand beside them, and the spheres as released.
"""

from __future__ import annotations

from collections.abc import Mapping

from local_elasticity.papers.experiment import Findings, Measured, Unit
from local_elasticity.papers.he2020local.simulation import (
    UNRESOLVED,
    Key,
    Simulation,
    cell,
    correlation_cells,
    correlations,
    draw_panels,
)
from local_elasticity.papers.smallest_effects import LOCAL_CORRELATION
from local_elasticity.statistics.claims import Claim

MANIFOLDS = ("two_cosines", "double_helix", "two_cycles", "two_spheres")
RELU: tuple[Key, ...] = tuple((name, "relu") for name in MANIFOLDS)
LINEAR: tuple[Key, ...] = tuple((name, "linear") for name in MANIFOLDS)
AS_RELEASED: Key = ("two_spheres", "relu bce")

CORRELATION = "Pearson's correlation of S_rel with geodesic distance, without the diagonal"


def _falls(key: Key, name: str, sentence: str, *, ours: bool = False) -> Claim:
    return Claim(
        name, sentence, "Fig. 4", CORRELATION, correlations([key]), LOCAL_CORRELATION, "below", "fisher", ours=ours
    )


class Fig4(Simulation):
    name = "he2020local/fig4"
    title = "S_rel against distance on four more pairs of manifolds"
    claims = (
        *(
            _falls(key, key[0], f"S_rel of two-layer ReLU nets falls with distance on the {key[0].replace('_', ' ')}")
            for key in RELU
        ),
        _falls(
            AS_RELEASED,
            "two_spheres_released",
            "The same on the spheres as the released code trains them, with BCE",
            ours=True,
        ),
    )
    keys = (*RELU, *LINEAR, AS_RELEASED)

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        cells = []
        for key in self.keys:
            cells += correlation_cells(measured, key, None)
            cells += [cell(measured, key, what) for what in ("mean", "accuracy", "rate", UNRESOLVED)]
        return Findings(cells, figures={"fig4": draw_panels(measured, self.keys)})
