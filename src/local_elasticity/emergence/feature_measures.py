"""Measures of features along training: a number at every probe of a `Monitor`, beside the similarities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from local_elasticity.emergence.alignment import elasticity
from local_elasticity.emergence.features import FeatureStream
from local_elasticity.emergence.named import OF_FEATURES, OfFeatures
from local_elasticity.emergence.train_unseen import train_unseen_similarity

Gathered = tuple[Tensor, Tensor]
"""Features [n, p] and labels [n]."""

ALONG = ("elasticity", "train_unseen_similarity")
"""What needs more than the features of one moment."""

SHUFFLES = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)

ANOTHER_ORDER = "features: the loader gives its examples in another order every time; use shuffle=False for elasticity"


class FeatureMeasure:
    """A measure of the features of some examples, asked again and again while their network trains.

    The examples need not be the monitor's: classes never trained on are what this is for. Streams that several
    measures share are read once per probe.

    Args:
        measure: a name of `OF_FEATURES`, or a function (features [n, p], labels [n]) → number; or `"elasticity"`, how
            far the features are from where they were when this was made; or `"train_unseen_similarity"`, the mean of
            |s| over the classes of `features`, in feature space and around the mean of `train`.
        features: from `stream_features`; the model in it is the one that trains.
        train: the features of the training task, which train–unseen similarity alone needs.
        name: under which the monitor keeps it; by default the measure's own.

    >>> import local_elasticity as le
    >>> from local_elasticity.emergence import stream_features
    >>> net, x, y = torch.nn.Linear(4, 3), torch.randn(12, 4), torch.arange(12) % 3
    >>> unseen = stream_features(net, [(torch.randn(10, 4), torch.arange(10) % 2)])
    >>> moved, recall = FeatureMeasure("elasticity", unseen), FeatureMeasure("recall_at_1", unseen)
    >>> monitor = le.Monitor(net, (x, y), loss="cross_entropy", measure=("kl", recall, moved), every=1, budget=None)
    >>> monitor.step(0), monitor.history[0].numbers["elasticity"]
    (True, 0.0)
    """

    def __init__(
        self,
        measure: str | OfFeatures,
        features: FeatureStream,
        *,
        train: FeatureStream | None = None,
        name: str | None = None,
    ) -> None:
        self.measure, self.features, self.train = measure, features, train
        own = measure if isinstance(measure, str) else getattr(measure, "__name__", "features")
        self.name = name if name is not None else str(own)
        self._check()
        self._start: Gathered | None = None
        if measure == "elasticity":
            start, labels = features.gathered()
            self._start = start.cpu(), labels.cpu()

    def _check(self) -> None:
        known = (*OF_FEATURES, *ALONG)
        if isinstance(self.measure, str) and self.measure not in known:
            raise ValueError(f"measure: expected one of {', '.join(known)}, got {self.measure!r}")
        if not isinstance(self.measure, str) and not callable(self.measure):
            raise TypeError(f"measure: expected a name or a function (features, labels), got {self.measure!r}")
        if not isinstance(self.features, FeatureStream):
            raise TypeError("features: expected a FeatureStream; stream_features(model, loader, layer=...) makes one")
        if (self.measure == "train_unseen_similarity") != (self.train is not None):
            raise ValueError("train: the training task's features go with train_unseen_similarity, and with it alone")
        if self.measure == "elasticity" and isinstance(getattr(self.features.loader, "sampler", None), SHUFFLES):
            raise ValueError(ANOTHER_ORDER)

    def __call__(self, gathered: Callable[[FeatureStream], Gathered] = FeatureStream.gathered) -> float:
        """The number now; `gathered` may answer for streams that others have asked for already."""
        features, labels = gathered(self.features)
        if self._start is not None:
            return self._moved(features, labels)
        if self.train is not None:
            return _similarity_to_task(*gathered(self.train), features, labels)
        measure = OF_FEATURES[self.measure] if isinstance(self.measure, str) else self.measure
        return float(measure(features, labels))

    def _moved(self, features: Tensor, labels: Tensor) -> float:
        assert self._start is not None
        start, order = self._start
        if not torch.equal(order, labels.cpu()):
            raise ValueError(ANOTHER_ORDER)
        return elasticity(start, features.cpu())

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the features that elasticity is measured from."""
        return {} if self._start is None else {"features": self._start[0], "labels": self._start[1]}

    def load(self, state: dict[str, Any]) -> None:
        if state:
            self._start = state["features"], state["labels"]


def _similarity_to_task(train: Tensor, y: Tensor, unseen: Tensor, labels: Tensor) -> float:
    """The mean of |s| over unseen classes."""
    train, unseen = train.double(), unseen.double()
    X, rows = train - train.mean(0), unseen - train.mean(0)
    found = [abs(train_unseen_similarity(X, y.to(X.device), rows[labels == name])) for name in labels.unique()]
    return sum(found) / len(found)
