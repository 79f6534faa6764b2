"""The two-layer model f(x) = N^{-1/2} aᵀσ(Wx): rows of W on the unit sphere, a_i ~ N(0, 1/N), and only W steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from local_elasticity.emergence.activation import Activation, activation_named
from local_elasticity.emergence.designs import generator_for
from local_elasticity.shapes import Float


@dataclass(frozen=True)
class TwoLayer:
    """The network of the theory. Nothing changes it; a step makes another one.

    Attributes:
        W: first-layer weights, [N, d].
        a: second-layer weights, [N]; they are not trained.
        activation: one of `relu` (centred), `tanh`, `erf`, `linear`.

    >>> network = TwoLayer.random(inputs=8, width=32, seed=0)
    >>> x = torch.ones(5, 8, dtype=torch.float64)
    >>> network.features(x).shape, network(x).shape
    (torch.Size([5, 32]), torch.Size([5]))
    """

    W: Float[Tensor, "N d"]
    a: Float[Tensor, " N"]
    activation: Activation

    @classmethod
    def random(
        cls,
        inputs: int,
        width: int,
        *,
        activation: str | Activation = "relu",
        seed: int = 0,
        outer_deviation: float | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> TwoLayer:
        """Rows uniform on the unit sphere, a_i ~ N(0, outer_deviation²).

        `outer_deviation` is 1/√N by default. With 1 instead the network's own outputs are as large as the labels, and
        one step is no longer nearly of rank one.
        """
        if inputs < 1 or width < 1:
            raise ValueError(f"inputs, width: expected both to be at least 1, got {inputs} and {width}")
        generator = generator_for("network", seed)
        W = torch.randn(width, inputs, generator=generator, dtype=torch.float64)
        a = torch.randn(width, generator=generator, dtype=torch.float64)
        deviation = 1 / math.sqrt(width) if outer_deviation is None else outer_deviation
        rows = nn.functional.normalize(W, dim=1)
        return cls(rows.to(dtype), (deviation * a).to(dtype), activation_named(activation))

    @property
    def inputs(self) -> int:
        return self.W.shape[1]

    @property
    def width(self) -> int:
        return self.W.shape[0]

    def features(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b N"]:
        """F = σ(Wx), the features of each row, in the network's precision."""
        return self.activation.function(x.to(self.W.dtype) @ self.W.T)

    def __call__(self, x: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        return self.features(x) @ self.a / math.sqrt(self.width)

    def moved(self, change: Float[Tensor, "N d"]) -> TwoLayer:
        """The same network with W + change."""
        return replace(self, W=self.W + change)

    def module(self) -> TwoLayerModule:
        """As an `nn.Module` with one output, which steps a copy of W alone, for `Problem.of` and the engines."""
        return TwoLayerModule(self)


class TwoLayerModule(nn.Module):
    """A `TwoLayer` as a module."""

    def __init__(self, network: TwoLayer) -> None:
        super().__init__()
        self.hidden = nn.Linear(network.inputs, network.width, bias=False, dtype=network.W.dtype)
        self.hidden.weight = nn.Parameter(network.W.clone())
        self.activation = network.activation
        self.outer = nn.Linear(network.width, 1, bias=False, dtype=network.W.dtype)
        self.outer.weight = nn.Parameter(network.a[None] / math.sqrt(network.width), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.activation.function(self.hidden(x)))
