"""Table 5: Algorithm 1 from random and from warmed-up weights, squared loss, MNIST."""

from __future__ import annotations

from local_elasticity.papers.experiment import Claim
from local_elasticity.papers.he2020local import table1
from local_elasticity.papers.he2020local.grid import TableGrid, judge_gains
from local_elasticity.papers.he2020local.table import ClusteringTable, Row
from local_elasticity.papers.he2020local.task import MNIST_TASKS

RANDOM = (
    Row("l2-relative (random)", "relu l2 random", "relative", (50.9, 55.2, 51.2, 59.0, 58.5, 59.9)),
    Row("l2-kernelized (random)", "relu l2 random", "kernelized", (50.4, 55.5, 55.7, 56.6, 68.4, 75.9)),
)
TRAINED = (table1.RELATIVE, table1.KERNELIZED)

TRAINED_AHEAD = Claim("trained", "The optimal setting always outperforms the random setting of the weights (A.4)")


class Table5(ClusteringTable):
    name = "he2020local/table5"
    title = "Clustering accuracy on MNIST from random and from warmed-up weights"
    claims = (TRAINED_AHEAD,)
    tasks = MNIST_TASKS
    rows = (*RANDOM, *TRAINED)

    def judge(self, grid: TableGrid) -> list[Claim]:
        pairs = [(trained.name, random.name) for trained, random in zip(TRAINED, RANDOM, strict=True)]
        return [judge_gains(TRAINED_AHEAD, grid, pairs, everywhere=True)]
