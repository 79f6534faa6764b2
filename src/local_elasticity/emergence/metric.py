"""Metric learning: a proxy loss and a triplet loss in a few lines, and those of pytorch-metric-learning (extra
`metric`), with its calculator of Recall@1.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from local_elasticity.checks import check_choice
from local_elasticity.shapes import Float, Int

LIBRARY_LOSSES = {
    "proxy_nca": "ProxyNCALoss",
    "proxy_anchor": "ProxyAnchorLoss",
    "normalized_softmax": "NormalizedSoftmaxLoss",
    "triplet_margin": "TripletMarginLoss",
    "contrastive": "ContrastiveLoss",
    "multi_similarity": "MultiSimilarityLoss",
}
"""Names here → classes of `pytorch_metric_learning.losses`."""


class ProxyLoss(nn.Module):
    """One learned proxy a class; cross entropy of the cosines with them, over a temperature.

    ℓ(f, y) = −log softmax(cos(f, p)/temperature)_y: normalised softmax, the simplest of the proxy losses.

    >>> loss = ProxyLoss(classes=3, features=8, generator=torch.Generator().manual_seed(0))
    >>> loss(torch.ones(4, 8), torch.tensor([0, 1, 2, 0])).shape
    torch.Size([])
    """

    def __init__(
        self, classes: int, features: int, *, temperature: float = 0.1, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(classes, features, generator=generator))
        self.temperature = temperature

    def forward(self, features: Float[Tensor, "b p"], labels: Int[Tensor, " b"]) -> Tensor:
        cosines = F.normalize(features, dim=1) @ F.normalize(self.proxies, dim=1).T
        return F.cross_entropy(cosines / self.temperature, labels)


def triplet_loss(features: Float[Tensor, "b p"], labels: Int[Tensor, " b"], *, margin: float = 0.2) -> Tensor:
    """The mean over all triplets (anchor, one of its class, one of another) that break the margin of
    max(0, ‖a − p‖ − ‖a − n‖ + margin), on features of unit length; 0 where none does.

    >>> same = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    >>> float(triplet_loss(same, torch.tensor([0, 0, 1])))
    0.0
    """
    unit = F.normalize(features, dim=1)
    squared = (2 - 2 * unit @ unit.T).clamp_min(1e-12)
    distance = squared.sqrt()
    same = labels[:, None] == labels
    positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    broken = F.relu(distance[:, :, None] - distance[:, None, :] + margin)
    valid = positive[:, :, None] & ~same[:, None, :]
    losses = torch.where(valid, broken, 0)
    return losses.sum() / (losses > 0).sum().clamp_min(1)


def library_loss(name: str, **options: Any) -> nn.Module:
    """A loss of pytorch-metric-learning by name: called with (features, labels). Options are the library's own.

    Names: `proxy_nca`, `proxy_anchor`, `normalized_softmax` (these take num_classes and embedding_size),
    `triplet_margin`, `contrastive`, `multi_similarity`.
    """
    check_choice("name", name, LIBRARY_LOSSES)
    return getattr(_library("losses"), LIBRARY_LOSSES[name])(**options)


def library_recall_at_1(features: Float[Tensor, "n p"], labels: Int[Tensor, " n"]) -> float:
    """Recall@1 by pytorch-metric-learning's AccuracyCalculator, cosine, leave-self-out: a measure of features.

    It wants faiss where that is installed; here its own search in blocks is used, so that nothing else is needed.
    """
    knn = _library("utils.inference").CustomKNN(_library("distances").CosineSimilarity(), batch_size=4096)
    calculator = _library("utils.accuracy_calculator").AccuracyCalculator(
        include=("precision_at_1",), k=1, knn_func=knn, device=features.device
    )
    return float(calculator.get_accuracy(features, labels)["precision_at_1"])


def _library(part: str) -> Any:
    from importlib import import_module

    try:
        return import_module(f"pytorch_metric_learning.{part}")
    except ImportError as error:
        raise ImportError(
            "this needs pytorch-metric-learning; install the extra: pip install 'local-elasticity[metric]'"
        ) from error
