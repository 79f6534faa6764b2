"""Table 7: the kernelized similarity and its normalised form, MNIST."""

from __future__ import annotations

from local_elasticity.papers.experiment import Claim
from local_elasticity.papers.he2020local import table1
from local_elasticity.papers.he2020local.grid import TableGrid, judge_gains
from local_elasticity.papers.he2020local.table import ClusteringTable, Row
from local_elasticity.papers.he2020local.task import MNIST_TASKS

NORMALIZED = Row(
    "l2-normalized-kernelized (ours)", "relu l2", "normalized-kernelized", (71.3, 62.3, 64.8, 68.0, 73.0, 79.5)
)
BCE_NORMALIZED = Row(
    "BCE-normalized-kernelized (ours)", "relu bce", "normalized-kernelized", (52.0, 57.5, 61.0, 56.9, 50.1, 75.2)
)

HELPS = Claim("normalized_l2", "Normalising the kernel is slightly better with the l2 loss (A.4)")
NOT_BCE = Claim("normalized_bce", "This conclusion no longer holds with the cross-entropy loss (A.4)")


class Table7(ClusteringTable):
    name = "he2020local/table7"
    title = "Clustering accuracy on MNIST: kernelized and normalised kernelized similarity"
    claims = (HELPS, NOT_BCE)
    tasks = MNIST_TASKS
    rows = (table1.KERNELIZED, table1.BCE_KERNELIZED, NORMALIZED, BCE_NORMALIZED)

    def judge(self, grid: TableGrid) -> list[Claim]:
        return [
            judge_gains(HELPS, grid, [(NORMALIZED.name, table1.KERNELIZED.name)]),
            judge_gains(NOT_BCE, grid, [(table1.BCE_KERNELIZED.name, BCE_NORMALIZED.name)]),
        ]
