"""Table 2: Algorithm 1 on CIFAR-10, ReLU and linear nets, squared and cross-entropy loss, beside K-means and PCA."""

from __future__ import annotations

from local_elasticity.papers.he2020local.table import ClusteringTable, Row
from local_elasticity.papers.he2020local.table1 import ABOUT, REGRESSION, outperform
from local_elasticity.papers.he2020local.task import CIFAR10_TASKS

OTHERS = (
    Row("K-means", "baselines", "K-means", (50.3, 50.9, 51.1, 51.6, 51.8, 52.4)),
    Row("PCA + K-means", "baselines", "PCA + K-means", (50.6, 51.0, 51.1, 51.6, 51.7, 52.4)),
    Row("l2-relative (linear)", "linear l2", "relative", (50.0, 56.8, 55.2, 50.6, 56.3, 52.5)),
    Row("l2-kernelized (linear)", "linear l2", "kernelized", (50.4, 50.7, 51.1, 51.3, 51.9, 52.8)),
    Row("BCE-relative (linear)", "linear bce", "relative", (50.4, 50.9, 50.2, 50.6, 55.3, 50.2)),
    Row("BCE-kernelized (linear)", "linear bce", "kernelized", (55.7, 58.1, 52.0, 50.5, 55.8, 53.0)),
)
RELATIVE = Row("l2-relative (ours)", "relu l2", "relative", (53.7, 50.2, 58.4, 54.2, 63.0, 53.5))
OURS = (
    RELATIVE,
    Row("l2-kernelized (ours)", "relu l2", "kernelized", (52.1, 50.5, 53.6, 52.7, 50.5, 53.0)),
    Row("BCE-relative (ours)", "relu bce", "relative", (51.1, 53.5, 50.7, 51.1, 55.6, 50.3)),
    Row("BCE-kernelized (ours)", "relu bce", "kernelized", (58.4, 59.7, 56.6, 51.2, 55.0, 51.8)),
)


class Table2(ClusteringTable):
    name = "he2020local/table2"
    title = "Clustering accuracy on CIFAR-10: Algorithm 1 with ReLU and linear nets, K-means, PCA"
    claims = outperform(
        "The relative similarity based method with the l2 loss performs best on CIFAR-10",
        best_row=RELATIVE,
        baselines=[row.name for row in OTHERS],
        methods=[row.name for row in OURS],
    )
    tasks = CIFAR10_TASKS
    rows = (*OTHERS, *OURS, *REGRESSION, *ABOUT)
