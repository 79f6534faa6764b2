"""A stack of two-layer nets f = Vᵀσ(W x + b) + c, stepped together by hand, in coordinates in which gradient descent is
the same and cheaper:

* **Still inputs.** What is equal in all examples, the bias among it, acts as one input. A rotation of the inputs that
  gathers it leaves every step as it was, and MNIST with some 600 columns instead of 785.
* **Pre-activations.** Where there are fewer examples than twice the columns, the pre-activations Z of all examples are
  kept instead of W: a step on the batch B moves them by −η (X X_Bᵀ) ∂ℓ/∂Z_B, one product instead of two.
* **Silent units.** A ReLU that no example turns on never moves again and adds nothing: it is left out. The paper's rate
  is far beyond what 40960 units bear with the squared loss, and most of them fall silent within a few steps.
* **Linear nets.** Rotations of the hidden layer change nothing, and descent never leaves the span of W's columns and V:
  a net of 40960 linear units is one of r + 1, whose weights are the Cholesky factor of [W V]ᵀ[W V].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

Activation = Literal["relu", "linear", "sigmoid"]
Loss = Literal["l2", "bce", "bce of probabilities"]
"""The squared error; the cross-entropy of logits; the same as nn.BCELoss differentiates it after a sigmoid in float32,
where a probability that rounds to 0 or 1 has no gradient."""

ROUND = 64


def initial_weights(
    inputs: int, width: int, *, seed: int, device: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """PyTorch's own initialisation of two linear layers, uniform within ±1/√inputs: [W b], V and c.

    >>> [part.shape for part in initial_weights(3, 5, seed=0, device="cpu", dtype=torch.float32)]
    [torch.Size([5, 4]), torch.Size([5]), torch.Size([])]
    """
    generator = torch.Generator(device).manual_seed(seed)

    def uniform(*shape: int, fan: int) -> Tensor:
        drawn = torch.rand(shape, generator=generator, device=device, dtype=dtype)
        return (2 * drawn - 1).mul_(fan**-0.5)

    return uniform(width, inputs + 1, fan=inputs), uniform(width, fan=width), uniform(fan=width)


def with_one(x: Tensor) -> Tensor:
    """[x 1], so that the bias is a weight like the others."""
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1)


def still_inputs_gathered(x: Tensor) -> Tensor:
    """An orthonormal basis [d + 1, r] in which all that never changes in the examples [x 1] is one coordinate.

    >>> still_inputs_gathered(torch.tensor([[3.0, 0.0], [3.0, 5.0]])).shape  # the first input and the one beside it
    torch.Size([3, 2])
    """
    x = with_one(x)
    still = (x == x[0]).all(0)
    direction = torch.where(still, x[0], 0.0)
    units = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)[:, ~still]
    return torch.cat([units, (direction / direction.norm())[:, None]], dim=1)


def linear_units_gathered(W: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of linear nets [s, h, r], [s, h] in an orthonormal basis of the hidden directions that they use:
    [s, r + 1, r], [s, r + 1]. Nets that are narrower than that stay as they are.

    >>> W, V = torch.randn(1, 9, 2), torch.randn(1, 9)
    >>> W2, V2 = linear_units_gathered(W, V)
    >>> W2.shape, torch.allclose(V @ W[0], V2 @ W2[0], atol=1e-5)
    (torch.Size([1, 3, 2]), True)
    """
    if W.shape[1] <= W.shape[2] + 1:
        return W, V
    small = []
    for one in torch.cat([W, V[:, :, None]], dim=2):
        used = one.square().sum(0) > 0
        columns = one[:, used].double()
        factor = columns.new_zeros(one.shape[1], one.shape[1])
        factor[: used.sum(), used] = torch.linalg.cholesky(columns.T @ columns, upper=True)
        small.append(factor.to(W.dtype))
    gathered = torch.stack(small)
    return gathered[:, :, :-1].contiguous(), gathered[:, :, -1].contiguous()


class Weights:
    """Lower layers as their weights: two products a step, forward and back, of x [s, n, r] and Wᵀ [s, r, h]. (With the
    units last, the rank-B update runs along memory and takes a third of the time on a CPU.)
    """

    def __init__(self, x: Tensor, W: Tensor) -> None:
        self.x, self.Wt = x, W.mT.contiguous()
        self.each = torch.arange(len(x), device=x.device)[:, None]

    def pre_activations(self, rows: Tensor) -> Tensor:
        return torch.bmm(self.x[self.each, rows], self.Wt)

    def move(self, rows: Tensor, step: Tensor) -> None:
        self.Wt.baddbmm_(self.x[self.each, rows].mT, step, alpha=-1)

    def active(self) -> Tensor:
        """Units that some example of their net turns on, [s, h]."""
        return torch.stack([(x @ Wt > 0).any(0) for x, Wt in zip(self.x, self.Wt, strict=True)])

    def keep(self, units: Tensor) -> None:
        self.Wt = self.Wt.gather(2, units[:, None].expand(-1, self.x.shape[2], -1))

    def weights(self) -> Tensor:
        return self.Wt.mT.contiguous()


class PreActivations:
    """Lower layers as all examples' pre-activations, Z [s, n, h], and what each example has added to the weights."""

    def __init__(self, x: Tensor, W: Tensor) -> None:
        self.x, self.W = x, W
        self.each = torch.arange(len(x), device=x.device)[:, None]
        self.gram, self.Z = torch.bmm(x, x.mT), torch.bmm(x, W.mT)
        self.added = torch.zeros_like(self.Z)

    def pre_activations(self, rows: Tensor) -> Tensor:
        return self.Z[self.each, rows]

    def move(self, rows: Tensor, step: Tensor) -> None:
        self.Z.baddbmm_(self.gram[self.each, rows].mT, step, alpha=-1)
        self.added[self.each, rows] -= step

    def active(self) -> Tensor:
        return (self.Z > 0).any(1)

    def keep(self, units: Tensor) -> None:
        self.W = self.W[self.each, units]
        columns = units[:, None].expand(-1, self.x.shape[1], -1)
        self.Z, self.added = self.Z.gather(2, columns), self.added.gather(2, columns)

    def weights(self) -> Tensor:
        return torch.baddbmm(self.W, self.added.mT, self.x)


class Top:
    """Upper weights V [s, h] and biases c [s]: a step moves them, and says how the lower layers move."""

    def __init__(self, y: Tensor, V: Tensor, c: Tensor, rates: Tensor, loss: Loss, activation: Activation) -> None:
        self.y, self.V, self.c, self.rates = y, V, c, rates
        self.loss, self.activation = loss, activation

    def step(self, rows: Tensor, Z: Tensor) -> Tensor:
        """η ∂ℓ/∂Z at the pre-activations Z [s, B, h] of a batch, which are used up."""
        H, slope = _activated(Z, self.activation)
        f = torch.bmm(H, self.V[:, :, None])[:, :, 0] + self.c[:, None]
        g = self.rates[:, None] * loss_gradient(f, self.y.gather(1, rows), self.loss)
        moved = torch.bmm(H.mT, g[:, :, None])[:, :, 0]
        step = torch.mul(g[:, :, None], self.V[:, None], out=H)
        if slope is not None:
            step.mul_(slope)
        self.V.sub_(moved)
        self.c.sub_(g.sum(1))
        return step


class ThreeLayers:
    """Nets f = Vᵀσ(W₂ σ(W₁ x + b₁) + b₂) + c, stepped together by hand: a stack fills a device that one net does not,
    and a step is added to the large W₂ where it lies.
    """

    def __init__(
        self, nets: Sequence[nn.Module], x: Tensor, y: Tensor, rates: Tensor, loss: Loss, activation: Activation
    ) -> None:
        self.x, self.y, self.rates, self.loss, self.activation = x, y, rates, loss, activation
        self.each = torch.arange(len(x), device=x.device)[:, None]
        self.parts = [torch.stack([part.detach() for part in alike]) for alike in _parameters(nets)]

    def step(self, rows: Tensor) -> None:
        """One step of every net on its own batch, rows [s, B]."""
        W1, b1, W2, b2, V, c = self.parts
        x = self.x[self.each, rows]
        H1, slope1 = _activated(torch.baddbmm(b1[:, None], x, W1.mT), self.activation)
        H2, slope2 = _activated(torch.baddbmm(b2[:, None], H1, W2.mT), self.activation)
        f = torch.baddbmm(c[:, None], H2, V.mT)[:, :, 0]
        g = (self.rates[:, None] * loss_gradient(f, self.y.gather(1, rows), self.loss))[:, :, None]
        G2 = g * V if slope2 is None else (g * V).mul_(slope2)
        G1 = torch.bmm(G2, W2) if slope1 is None else torch.bmm(G2, W2).mul_(slope1)
        V.baddbmm_(g.mT, H2, alpha=-1)
        c.sub_(g.sum(1))
        for W, b, G, read in ((W2, b2, G2, H1), (W1, b1, G1, x)):
            W.baddbmm_(G.mT, read, alpha=-1)
            b.sub_(G.sum(1))

    def write_into(self, nets: Sequence[nn.Module]) -> None:
        """Give the nets their weights."""
        for alike, stacked in zip(_parameters(nets), self.parts, strict=True):
            for part, trained in zip(alike, stacked, strict=True):
                part.data.copy_(trained)


def _parameters(nets: Sequence[nn.Module]) -> list[tuple[nn.Parameter, ...]]:
    return list(zip(*(net.parameters() for net in nets), strict=True))


def leave_silent_units_out(lower: Weights | PreActivations, top: Top) -> None:
    """Keep as many units of every net as the net with the most active ones has, these first; a round number of them,
    because matrix products like that.
    """
    active = lower.active()
    most = ROUND * -(-int(active.sum(1).max()) // ROUND)
    units = active.int().argsort(dim=1, descending=True, stable=True)[:, : max(ROUND, most)]
    lower.keep(units)
    top.V = top.V.gather(1, units)


def loss_gradient(f: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """∂/∂f of the mean over a batch [..., B].

    >>> loss_gradient(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0]), "l2")
    tensor([0., 2.])
    """
    if loss == "l2":
        return 2 * (f - y) / f.shape[-1]
    p = torch.sigmoid(f)
    if loss == "bce":
        return (p - y) / f.shape[-1]
    slope = p * (1 - p)
    return (p - y) * slope / slope.clamp_min(1e-12) / f.shape[-1]


def _activated(Z: Tensor, activation: Activation) -> tuple[Tensor, Tensor | None]:
    """σ(Z), in Z's place, and σ′(Z); None where that is one."""
    if activation == "relu":
        on = Z > 0
        return Z.relu_(), on
    if activation == "sigmoid":
        H = Z.sigmoid_()
        return H, H * (1 - H)
    return Z, None
