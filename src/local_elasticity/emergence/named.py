"""Measures of features by name: functions (features [n, p], labels [n]) → number.

Wherever something takes a measure of features, one of these or a callable of your own will do.

| name                   | what it is                                          |
|------------------------|-----------------------------------------------------|
| `alignment`            | E⟨F, F′⟩/p within classes                           |
| `normalized_alignment` | the same over E‖F‖²/p                               |
| `cosine_alignment`     | mean cosine within classes                          |
| `centred_alignment`    | mean cosine after the mean of all rows is taken off |
| `separability`         | −E⟨F, F′⟩/p between classes                         |
| `recall_at_1`          | leave-self-out, cosine                              |
| `kmeans_accuracy`      | K-means against classes, best matching              |
| `nmi`                  | K-means against classes, mutual information         |
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from local_elasticity.emergence.alignment import alignment, separability
from local_elasticity.emergence.clusters import cluster_agreement
from local_elasticity.emergence.retrieval import recall_at_k

OfFeatures = Callable[[Tensor, Tensor], float]

OF_FEATURES: dict[str, OfFeatures] = {
    "alignment": alignment,
    "normalized_alignment": partial(alignment, form="normalized"),
    "cosine_alignment": partial(alignment, form="cosine"),
    "centred_alignment": partial(alignment, form="centred_cosine"),
    "separability": separability,
    "recall_at_1": recall_at_k,
    "kmeans_accuracy": lambda features, labels: cluster_agreement(features, labels).accuracy,
    "nmi": lambda features, labels: cluster_agreement(features, labels).nmi,
}
"""Measures of features [n, p] and labels [n], by name."""
