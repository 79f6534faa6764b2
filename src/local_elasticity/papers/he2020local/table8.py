"""Table 8: Algorithm 1 without data normalisation, pixels in [0, 1], MNIST; and what section 5 says of norms."""

from __future__ import annotations

from local_elasticity.papers.he2020local import table1
from local_elasticity.papers.he2020local.grid import every, gains, ratio
from local_elasticity.papers.he2020local.table import ClusteringTable, Row
from local_elasticity.papers.he2020local.task import MNIST_TASKS
from local_elasticity.papers.smallest_effects import ANY_RATIO, EXAMPLE, IMPORTANT_POINTS, ONE_PERCENT
from local_elasticity.statistics.claims import Claim

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

PAIRS = [(ours.name, other.name) for ours, other in zip(table1.OURS[:2], UNNORMALIZED[:2], strict=True)]
STEPS = [rows[0].name for rows in (NORMALIZED_ABOUT, UNNORMALIZED_ABOUT)]


class Table8(ClusteringTable):
    name = "he2020local/table8"
    title = "Clustering accuracy on MNIST with and without data normalisation"
    claims = (
        Claim(
            "normalization",
            "The results show that normalization is important for our methods",
            "A.4",
            "accuracy averaged over the six pairs, squared loss, both similarities, in points",
            gains(PAIRS),
            IMPORTANT_POINTS,
            resolution=EXAMPLE,
        ),
        Claim(
            "identity",
            "2 S_ker(x, x′) ≈ ‖φ(x)‖² + ‖φ(x′)‖² − d(x, x′)², φ = ∂f/∂w",
            "§5",
            "relative distance of the two sides at a step of 1e-6, in every pair",
            every(STEPS),
            ONE_PERCENT,
            "below",
            "log",
        ),
        Claim(
            "equal_norms",
            "Normalization may bring the norms ‖φ‖ closer to a constant",
            "§5",
            "relative spread of ‖φ‖², not normalised over normalised",
            ratio(UNNORMALIZED_ABOUT[1].name, NORMALIZED_ABOUT[1].name),
            ANY_RATIO,
            scale="log",
        ),
    )
    tasks = MNIST_TASKS
    rows = (*UNNORMALIZED, *table1.OURS, *NORMALIZED_ABOUT, *UNNORMALIZED_ABOUT)
