"""ResNet-18 without batch norm, the classifier of Dan et al. §2.1."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ResNet18(nn.Module):
    """7×7 stride-2 stem and max-pool, four stages of two basic blocks, no normalisation, He-normal convolutions.

    >>> import torch
    >>> net = ResNet18(outputs=3)
    >>> net(torch.zeros(2, 3, 32, 32)).shape, sum(p.numel() for p in net.parameters())
    (torch.Size([2, 3]), 11168451)
    """

    def __init__(self, outputs: int, *, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.stem = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = nn.Sequential(
            *[
                nn.Sequential(Block(widths[max(i - 1, 0)], out, 1 if i == 0 else 2), Block(out, out, 1))
                for i, out in enumerate(widths)
            ]
        )
        self.head = nn.Linear(8 * width, outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        features = self.stages(self.pool(torch.relu(self.stem(x))))
        return self.head(features.mean((2, 3)))


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut, 1×1 where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))
