"""The networks of He & Su: feed-forward nets of any width and depth, the MNIST CNN, the fully connected ResNet."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from local_elasticity.checks import check_choice

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "linear": nn.Identity,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}


def fnn(
    inputs: int,
    outputs: int = 1,
    *,
    width: int = 40960,
    layers: int = 2,
    activation: str = "relu",
    probability: bool = False,
) -> nn.Sequential:
    """A fully connected net: `layers` linear layers, hidden ones of the same width; inputs are flattened.

    He & Su: 40960 units in two layers, 8192 in three; the linear baseline is the same without activation. With
    `probability` it ends in a sigmoid, for the BCE loss.

    >>> sum(p.numel() for p in fnn(784, width=40960).parameters())
    32194561
    """
    check_choice("activation", activation, ACTIVATIONS)
    if layers < 1:
        raise ValueError(f"layers: expected at least one, got {layers!r}")
    sizes = [inputs, *[width] * (layers - 1), outputs]
    modules: list[nn.Module] = [nn.Flatten()]
    for i in range(layers):
        modules.append(nn.Linear(sizes[i], sizes[i + 1]))
        if i < layers - 1:
            modules.append(ACTIVATIONS[activation]())
    return nn.Sequential(*modules, *[nn.Sigmoid()] * probability)


def cnn(outputs: int = 1, *, channels: int = 1, size: int = 28, probability: bool = False) -> nn.Sequential:
    """conv 20@5×5, relu, maxpool 2, conv 50@5×5, relu, maxpool 2, fc 500, relu, fc (He & Su A.4).

    >>> import torch
    >>> cnn()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 1])
    """
    side = ((size - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(50 * side * side, 500),
        nn.ReLU(),
        nn.Linear(500, outputs),
        *[nn.Sigmoid()] * probability,
    )


class FullyConnectedResNet(nn.Module):
    """h₁ = relu(fc x), h₂ = relu(fc h₁), out = fc(h₁ + h₂), 4096 units (He & Su A.4).

    >>> import torch
    >>> FullyConnectedResNet(784, width=64)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 1])
    """

    def __init__(self, inputs: int, outputs: int = 1, *, width: int = 4096) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.second = nn.Linear(width, width)
        self.last = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.first(x.flatten(1)))
        second = torch.relu(self.second(first))
        return self.last(first + second)
