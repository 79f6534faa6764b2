"""Gradient flows known in closed form, and S_rel along them as a function of time; float64, NumPy and SciPy only.

| model                 | where                                        | w(t)                 |
|-----------------------|----------------------------------------------|----------------------|
| `PenalisedFeatures`   | Dan et al. §3, Theorems 3.1 and 3.2          | closed form          |
| `ReluGate`            | Dan et al. §4, Theorems 4.1 and 4.3          | closed form          |
| `HomogeneousFeatures` | Dan et al. §5, Definition 6, Theorem 5.1     | numerical            |
| `DiagonalQuadratic`   | Dan et al. Theorem 5.2                       | closed form          |
| `SymmetricPair`       | Dan et al. Theorem 5.3, Lemma C.1            | closed form          |
| `TwoLayerRelu`        | He & Su §2.3 and A.3, eq. 2.4                | numerical            |

Each is a `Flow`: velocity(w), w(t), relative(t, source, target, step_size=0). Nothing here imports the engine;
the two are compared in `local_elasticity.papers.certificates` (`local-elasticity verify`).
"""

from local_elasticity.theory.diagonal_quadratic import DiagonalQuadratic
from local_elasticity.theory.flow import Flow, StillSource, integrate
from local_elasticity.theory.homogeneous import HomogeneousFeatures
from local_elasticity.theory.penalised import PenalisedFeatures
from local_elasticity.theory.relu_gate import ReluGate, modified_sgd
from local_elasticity.theory.symmetric_pair import SymmetricPair
from local_elasticity.theory.two_layer import TwoLayerRelu

__all__ = [
    "DiagonalQuadratic",
    "Flow",
    "HomogeneousFeatures",
    "PenalisedFeatures",
    "ReluGate",
    "StillSource",
    "SymmetricPair",
    "TwoLayerRelu",
    "integrate",
    "modified_sgd",
]
