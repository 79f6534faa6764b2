"""ResNet-20 and ResNet-56 for CIFAR-10, in the shape that the public weights have."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def resnet20() -> CifarResNet:
    """Three stages of three blocks; 91.7 % on CIFAR-10 with the public weights.

    >>> import torch
    >>> resnet20()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return CifarResNet(3)


def resnet56() -> CifarResNet:
    """Three stages of nine blocks; 93.4 % on CIFAR-10 with the public weights."""
    return CifarResNet(9)


def load_public_weights(net: CifarResNet, path: str | Path) -> CifarResNet:
    """Read the public weights (a `.th` file) into `net`; tensors only, nothing is unpickled. Inputs are to be
    normalised with ImageNet's channel means (0.485, 0.456, 0.406) and deviations (0.229, 0.224, 0.225)."""
    stored = torch.load(path, weights_only=True, map_location="cpu")
    weights = {name.removeprefix("module."): tensor for name, tensor in stored["state_dict"].items()}
    net.load_state_dict(weights)
    return net


class CifarResNet(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


class _Block(nn.Module):
    """Two convolutions with batch norm; the shortcut drops every other pixel and pads new channels with zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.new_channels = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return torch.relu(out + self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            return x
        either_side = self.new_channels // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, either_side, either_side))


def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    first = _Block(inputs, outputs, stride)
    return nn.Sequential(first, *[_Block(outputs, outputs, 1) for _ in range(blocks - 1)])
