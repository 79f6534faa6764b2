"""A table of test problems: network, loss, sources, targets. One entry serves every engine and every update."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map

import local_elasticity as le


class TokenModel(nn.Module):
    """A little language model: dict inputs, tied weights, logits of the next token."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids, attention_mask):
        states = self.embedding(input_ids) * attention_mask[..., None]
        pooled = states.sum(1) / attention_mask.sum(1, keepdim=True)
        return {"logits": self.head(torch.tanh(self.mix(pooled)))}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


class Recurrent(nn.Module):
    """vmap cannot take an LSTM."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, a, b):
        return torch.tanh(self.left(a)) * self.right(b)


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], nn.Module]
    loss: str
    oracle_loss: Callable[..., torch.Tensor]
    examples: Callable[[int], Any]
    labels: Callable[[int], torch.Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    call: Callable[..., torch.Tensor] = lambda model, x: model(x)
    vectorizes: bool = True
    n: int = 5
    m: int = 4

    def __post_init__(self):
        torch.manual_seed(11)
        object.__setattr__(self, "model", self.make().double())
        object.__setattr__(self, "sources", (self._doubled(self.n), self.labels(self.n)))
        object.__setattr__(self, "targets", self._doubled(self.m))

    def _doubled(self, n):
        return tree_map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, self.examples(n))

    def problem(self, **options) -> le.Problem:
        return le.Problem.of(self.model, self.loss, **{**self.options, **options})

    def take(self, inputs, rows):
        return tree_map(lambda leaf: leaf[rows], inputs)


def _classes(k):
    return lambda n: torch.arange(n) % k


def _numbers(*shape):
    return lambda n: torch.randn(n, *shape).double()


def _binary(n):
    return (torch.arange(n) % 2).double()


def _mean_square(outputs, labels):
    return F.mse_loss(outputs, labels.reshape(outputs.shape))


def _half_square(outputs, labels):
    return 0.5 * (outputs - labels.reshape(outputs.shape)).square().flatten(1).sum(1).mean()


def _tokens(n):
    mask = torch.ones(n, 5)
    mask[:, 4] = 0
    return {"input_ids": torch.randint(0, 7, (n, 5)), "attention_mask": mask}


CASES = [
    Case(
        "relu net, squared loss",
        lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)),
        "half_mse",
        _half_square,
        lambda n: torch.randn(n, 4),
        _numbers(),
    ),
    Case(
        "tanh net, three outputs",
        lambda: nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 12), nn.Sigmoid(), nn.Linear(12, 3)),
        "cross_entropy",
        F.cross_entropy,
        lambda n: torch.randn(n, 4),
        _classes(3),
    ),
    Case(
        "sigmoid output, bce",
        lambda: nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1), nn.Sigmoid()),
        "bce",
        lambda outputs, labels: F.binary_cross_entropy(outputs, labels.reshape(outputs.shape)),
        lambda n: torch.randn(n, 4),
        _binary,
    ),
    Case(
        "logit output, bce_logits",
        lambda: nn.Sequential(nn.Linear(4, 12), nn.GELU(), nn.Linear(12, 1)),
        "bce_logits",
        lambda outputs, labels: F.binary_cross_entropy_with_logits(outputs, labels.reshape(outputs.shape)),
        lambda n: torch.randn(n, 4),
        _binary,
    ),
    Case(
        "cnn with batch norm and dropout",
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(4 * 9, 3),
        ),
        "cross_entropy",
        F.cross_entropy,
        lambda n: torch.randn(n, 1, 8, 8),
        _classes(3),
    ),
    Case(
        "residual cnn",
        lambda: le.models.ResNet18(3, width=2),
        "cross_entropy",
        F.cross_entropy,
        lambda n: torch.randn(n, 3, 16, 16),
        _classes(3),
    ),
    Case(
        "fully connected residual net",
        lambda: le.models.FullyConnectedResNet(6, width=10),
        "mse",
        _mean_square,
        lambda n: torch.randn(n, 6),
        _numbers(1),
    ),
    Case(
        "language model with tied weights",
        TokenModel,
        "cross_entropy",
        F.cross_entropy,
        _tokens,
        _classes(7),
        {"output": lambda out: out["logits"]},
        lambda model, x: model(**x)["logits"],
    ),
    Case(
        "attention",
        Attention,
        "cross_entropy",
        F.cross_entropy,
        lambda n: torch.randn(n, 5, 8),
        _classes(3),
    ),
    Case(
        "lstm",
        Recurrent,
        "cross_entropy",
        F.cross_entropy,
        lambda n: torch.randn(n, 5, 4),
        _classes(2),
        vectorizes=False,
    ),
    Case(
        "two inputs, four outputs",
        TwoInputs,
        "half_mse",
        _half_square,
        lambda n: (torch.randn(n, 3), torch.randn(n, 2)),
        _numbers(4),
        call=lambda model, x: model(*x),
    ),
]

CASE_OF = {case.name: case for case in CASES}
