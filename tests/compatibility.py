"""The network and data behind the files under tests/fixtures/0.1.0."""

import torch
from torch import nn


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


SOURCES = (torch.linspace(-1, 1, 40).view(10, 4).sin(), torch.arange(10) % 3)
