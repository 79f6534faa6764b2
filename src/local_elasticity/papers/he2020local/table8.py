"""Table 8: Algorithm 1 without data normalisation, pixels in [0, 1], MNIST; and what section 5 says of norms."""

from __future__ import annotations

from local_elasticity.papers.experiment import Claim
from local_elasticity.papers.he2020local import table1
from local_elasticity.papers.he2020local.grid import TableGrid, judge_below, judge_gains
from local_elasticity.papers.he2020local.table import ClusteringTable, Row
from local_elasticity.papers.he2020local.task import MNIST_TASKS

UNNORMALIZED = (
    Row("l2-relative (unnormalized)", "relu l2 unnormalized", "relative", (51.5, 58.4, 55.9, 53.0, 69.9, 75.5)),
    Row("l2-kernelized (unnormalized)", "relu l2 unnormalized", "kernelized", (51.4, 56.1, 55.3, 57.2, 62.1, 75.1)),
    Row("BCE-relative (unnormalized)", "relu bce unnormalized", "relative", (50.1, 50.3, 50.7, 53.2, 50.9, 50.1)),
    Row("BCE-kernelized (unnormalized)", "relu bce unnormalized", "kernelized", (50.6, 56.9, 59.6, 54.4, 52.2, 50.8)),
)
ABOUT = (
    ("distance of 2 S_ker at a step of 1e-6 from ‖φ‖² + ‖φ′‖² − d², relative", "step against limit"),
    ("standard deviation of ‖φ‖² over its mean", "spread of norms"),
    ("correlation of S_ker with d", "similarity against distance"),
)
"""Section 5, for the squared loss; the paper gives no numbers."""
NORMALIZED_ABOUT = tuple(Row(f"{name} (ours)", "relu l2", measure) for name, measure in ABOUT)
UNNORMALIZED_ABOUT = tuple(Row(f"{name} (unnormalized)", "relu l2 unnormalized", measure) for name, measure in ABOUT)

MATTERS = Claim("normalization", "Data normalisation is important for our methods (A.4), squared loss")
IDENTITY = Claim("identity", "2 S_ker(x, x′) ≈ ‖φ(x)‖² + ‖φ(x′)‖² − d(x, x′)², φ = ∂f/∂w (§5): within one percent")
EQUAL_NORMS = Claim("equal_norms", "Normalisation may bring the norms ‖φ‖ closer to a constant (§5)")


class Table8(ClusteringTable):
    name = "he2020local/table8"
    title = "Clustering accuracy on MNIST with and without data normalisation"
    claims = (MATTERS, IDENTITY, EQUAL_NORMS)
    tasks = MNIST_TASKS
    rows = (*UNNORMALIZED, *table1.OURS, *NORMALIZED_ABOUT, *UNNORMALIZED_ABOUT)

    def judge(self, grid: TableGrid) -> list[Claim]:
        pairs = [(ours.name, other.name) for ours, other in zip(table1.OURS[:2], UNNORMALIZED[:2], strict=True)]
        (step, spread, _), (other_step, other_spread, _) = NORMALIZED_ABOUT, UNNORMALIZED_ABOUT
        return [
            judge_gains(MATTERS, grid, pairs),
            judge_below(IDENTITY, grid, [step.name, other_step.name], 0.01),
            judge_gains(EQUAL_NORMS, grid, [(other_spread.name, spread.name)], unit=""),
        ]
