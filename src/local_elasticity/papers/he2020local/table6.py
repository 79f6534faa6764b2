"""Table 6: six choices of auxiliary examples for 5 vs 8 on MNIST."""

from __future__ import annotations

from dataclasses import replace

from local_elasticity.papers.experiment import Claim
from local_elasticity.papers.he2020local import table1
from local_elasticity.papers.he2020local.grid import TableGrid, judge_spread
from local_elasticity.papers.he2020local.table import ClusteringTable
from local_elasticity.papers.he2020local.task import AUXILIARY_TASKS

PAPER = (
    (75.9, 53.7, 54.3, 51.2, 53.9, 60.6),
    (71.0, 54.4, 50.2, 51.6, 50.6, 54.4),
    (50.2, 50.4, 50.1, 50.2, 52.3, 50.1),
    (52.1, 52.7, 51.6, 52.4, 50.3, 50.3),
)
ROWS = tuple(replace(row, paper=paper) for row, paper in zip(table1.OURS, PAPER, strict=True))

CRUCIAL = Claim("auxiliary", "The choice of auxiliary examples is crucial (A.4), squared loss")


class Table6(ClusteringTable):
    name = "he2020local/table6"
    title = "Clustering accuracy of 5 vs 8 by the auxiliary examples"
    claims = (CRUCIAL,)
    tasks = AUXILIARY_TASKS
    rows = ROWS

    def judge(self, grid: TableGrid) -> list[Claim]:
        return [judge_spread(CRUCIAL, grid, [row.name for row in ROWS[:2]], least=5.0)]
