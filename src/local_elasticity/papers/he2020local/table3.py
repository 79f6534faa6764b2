"""Table 3: Algorithm 1 with three architectures on MNIST, squared loss."""

from __future__ import annotations

from dataclasses import replace

from local_elasticity.papers.experiment import Claim
from local_elasticity.papers.he2020local import table1
from local_elasticity.papers.he2020local.grid import TableGrid, judge_ahead
from local_elasticity.papers.he2020local.table import ClusteringTable, Row
from local_elasticity.papers.he2020local.task import MNIST_TASKS

FNN = (
    replace(table1.RELATIVE, name="l2-relative (FNN)"),
    replace(table1.KERNELIZED, name="l2-kernelized (FNN)"),
)
CNN_RELATIVE = Row("l2-relative (CNN)", "cnn l2", "relative", (54.2, 53.7, 89.1, 50.1, 50.1, 83.0))
CNN_KERNELIZED = Row("l2-kernelized (CNN)", "cnn l2", "kernelized", (64.1, 69.5, 91.3, 97.6, 75.3, 87.4))
RESNET = (
    Row("l2-relative (ResNet)", "resnet l2", "relative", (50.7, 55.0, 55.5, 78.3, 52.3, 52.3)),
    Row("l2-kernelized (ResNet)", "resnet l2", "kernelized", (50.2, 60.4, 54.8, 76.3, 66.9, 68.8)),
)

CNN_HIGH = Claim("cnn", "CNN in conjunction with the kernelized similarity has high classification accuracy (§4.2)")
RESNET_FAILS = Claim("resnet", "The simple three-layer ResNet seems to not capture local elasticity (§4.2)")


class Table3(ClusteringTable):
    name = "he2020local/table3"
    title = "Clustering accuracy on MNIST by architecture: FNN, CNN, fully connected ResNet"
    claims = (CNN_HIGH, RESNET_FAILS)
    tasks = MNIST_TASKS
    rows = (*FNN, CNN_RELATIVE, CNN_KERNELIZED, *RESNET)

    def judge(self, grid: TableGrid) -> list[Claim]:
        """High: ahead of all others. Not captured: behind the plain net of as many layers less one."""
        fnn, resnet = [row.name for row in FNN], [row.name for row in RESNET]
        return [
            judge_ahead(CNN_HIGH, grid, [CNN_KERNELIZED.name], [*fnn, CNN_RELATIVE.name, *resnet]),
            judge_ahead(RESNET_FAILS, grid, fnn, resnet),
        ]
