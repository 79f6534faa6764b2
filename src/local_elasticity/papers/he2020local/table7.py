"""Table 7: the kernelized similarity and its normalised form, MNIST."""

from __future__ import annotations

import numpy as np

from local_elasticity.papers.he2020local import table1
from local_elasticity.papers.he2020local.grid import gains
from local_elasticity.papers.he2020local.table import ClusteringTable, Row
from local_elasticity.papers.he2020local.task import MNIST_TASKS
from local_elasticity.papers.smallest_effects import EXAMPLE
from local_elasticity.statistics.claims import Claim

NORMALIZED = Row(
    "l2-normalized-kernelized (ours)", "relu l2", "normalized-kernelized", (71.3, 62.3, 64.8, 68.0, 73.0, 79.5)
)
BCE_NORMALIZED = Row(
    "BCE-normalized-kernelized (ours)", "relu bce", "normalized-kernelized", (52.0, 57.5, 61.0, 56.9, 50.1, 75.2)
)

MEDIAN = "accuracy, the median over the six pairs, in points: one pair of the paper's moves by 23 points"


class Table7(ClusteringTable):
    name = "he2020local/table7"
    title = "Clustering accuracy on MNIST: kernelized and normalised kernelized similarity"
    claims = (
        Claim(
            "normalized_l2",
            "The normalized kernelized similarity is slightly better than the kernelized one with the l2 loss",
            "A.4",
            MEDIAN,
            gains([(NORMALIZED.name, table1.KERNELIZED.name)], np.median),
            resolution=EXAMPLE,
        ),
        Claim(
            "normalized_bce",
            "This conclusion no longer holds true with the cross-entropy loss: it is not better",
            "A.4",
            MEDIAN,
            gains([(BCE_NORMALIZED.name, table1.BCE_KERNELIZED.name)], np.median),
            direction="below",
            resolution=EXAMPLE,
        ),
    )
    tasks = MNIST_TASKS
    rows = (table1.KERNELIZED, table1.BCE_KERNELIZED, NORMALIZED, BCE_NORMALIZED)
