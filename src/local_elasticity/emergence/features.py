"""Features of any network: a module and the name of a layer, or any callable; batch by batch over a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from local_elasticity.emergence.checks import check_stream
from local_elasticity.engine.guard import untouched
from local_elasticity.engine.loader_states import read_apart
from local_elasticity.engine.replica import Replica
from local_elasticity.shapes import Float

Extractor = Callable[[Any], Tensor]
"""inputs [b, …] → features [b, p]."""

Batches = Iterable[tuple[Tensor, Tensor]]
"""Pairs (features [b, p], labels [b]) that can be gone through more than once."""


def feature_extractor(model: Callable[..., Any], layer: str | None = None) -> Extractor:
    """A function inputs [b, …] → features [b, p]: what the named layer puts out, or the model itself without a name.

    A module runs in evaluation mode and without gradients, on its own device, and is left as it was; what comes out
    is flattened after the first axis.

    >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> feature_extractor(net, "1")(torch.ones(5, 3)).shape
    torch.Size([5, 8])
    >>> feature_extractor(lambda x: 2 * x)(torch.ones(5, 3)).shape
    torch.Size([5, 3])
    """
    if not isinstance(model, nn.Module):
        if layer is not None:
            raise ValueError("layer: only an nn.Module has named layers; leave it out for a callable")
        if not callable(model):
            raise TypeError(f"model: expected an nn.Module or a callable, got {type(model).__name__}")
        return lambda inputs: _flat(model(inputs))
    modules = dict(model.named_modules())
    if layer is not None and layer not in modules:
        some = ", ".join(name for name in list(modules)[1:9])
        raise ValueError(f"layer: {layer!r} is not one of the model's; they are named {some}, …")
    return lambda inputs: _of_module(model, modules[layer] if layer else model, inputs)


@dataclass(frozen=True)
class FeatureStream:
    """The features of every batch of a loader, computed as they are asked for; labels come from the loader.

    Every measure of features takes one in place of (features, labels), and goes through it as often as it needs. A
    loader that shuffles will not do for `elasticity`, which goes through two of them side by side.
    """

    extract: Extractor
    loader: Iterable[Any]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return read_apart(self.loader, self._features)

    def _features(self, batch: Any) -> tuple[Tensor, Tensor]:
        inputs, labels = batch
        return self.extract(inputs), labels

    def gathered(self) -> tuple[Float[Tensor, "n p"], Tensor]:
        """All features and labels, in memory."""
        features, labels = zip(*self, strict=True)
        return torch.cat(features), torch.cat(labels)


def gathered(
    features: Tensor | Batches, labels: Tensor | None, *, name: str = "features", labels_name: str = "labels"
) -> tuple[Tensor, Tensor]:
    """Features and labels in memory, whether they came as tensors or as a stream, which brings its own labels.

    >>> gathered([(torch.ones(2, 3), torch.tensor([0, 1]))] * 2, None)[1]
    tensor([0, 1, 0, 1])
    """
    if not isinstance(features, Tensor):
        check_stream(name, features, labels, labels_name=labels_name)
        return as_stream(features).gathered()
    if labels is None:
        raise ValueError(f"{labels_name}: expected a class for each row")
    return features, labels


def as_stream(features: Batches) -> FeatureStream:
    """Batches of features as they are, where they are no stream already."""
    return features if isinstance(features, FeatureStream) else FeatureStream(lambda rows: rows, features)


def stream_features(model: Callable[..., Any], loader: Iterable[Any], *, layer: str | None = None) -> FeatureStream:
    """Features over a loader of (inputs, labels), for alignment, elasticity and the other measures.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> loader = DataLoader(TensorDataset(torch.eye(4), torch.tensor([0, 0, 1, 1])), batch_size=3)
    >>> stream_features(nn.Linear(4, 6), loader).gathered()[0].shape
    torch.Size([4, 6])
    """
    if isinstance(loader, Iterator):
        raise TypeError("loader: this can be gone through only once; pass a DataLoader or a list of batches")
    return FeatureStream(feature_extractor(model, layer), loader)


@untouched
def _of_module(model: nn.Module, layer: nn.Module, inputs: Any) -> Tensor:
    kept: list[Any] = []
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names = {id(tensor): name for name, tensor in tensors.items()}
    replica = Replica(model, names, {name: tensor.data for name, tensor in tensors.items()})
    parameter = next(model.parameters(), None)
    if parameter is not None and isinstance(inputs, Tensor):
        inputs = inputs.to(parameter.device)
    replica.watch({}, inputs)
    replica.observe(layer, lambda module, arguments, output: kept.append(output))
    with torch.no_grad():
        replica({}, inputs)
    if not kept:
        raise ValueError("layer: the model's forward pass did not come through it")
    return _flat(kept[-1])


def _flat(features: Any) -> Tensor:
    if not isinstance(features, Tensor) or features.ndim < 1:
        raise TypeError(f"model: expected features as a tensor [b, …], got {type(features).__name__}")
    return features.detach().flatten(1) if features.ndim > 1 else features.detach()[:, None]
