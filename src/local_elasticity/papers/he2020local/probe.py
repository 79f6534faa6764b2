"""The probe: what single steps of a trained net do, in the limit of small ones.

The released code takes steps of 1e-6 and more from frozen weights. Here is the limit η → 0, from the neural tangent
kernel K of the predictions: S_ker = K (eq. 2.3) and S_rel = |K(x, x′)| / K(x, x) (eq. 2.2). Rounding hides nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import local_elasticity as le
from local_elasticity.shapes import Bool, Float


def kernel_of_small_steps(net: nn.Module, x: Tensor, *, probabilities: bool = False) -> Float[Tensor, "n n"]:
    """S_ker of the net's logits, or of the probabilities that a sigmoid makes of them, in float64.

    >>> kernel_of_small_steps(nn.Linear(2, 1), torch.eye(2))
    tensor([[2., 1.],
            [1., 2.]], dtype=torch.float64)
    """
    K = le.ntk(le.Problem.of(net, "mse"), x).double()
    if not probabilities:
        return K
    with torch.no_grad():
        z = net(x)[:, 0].double()
    slope = torch.exp(F.logsigmoid(z) + F.logsigmoid(-z))
    return slope[:, None] * K * slope


def resolved_sources(net: nn.Module, x: Tensor, *, probabilities: bool = False) -> Bool[Tensor, " n"]:
    """Which sources can be seen to move: the logit is finite and, where probabilities are read, neither p nor 1 − p is
    below the rounding of the net's own numbers. A saturated probability does not change at any small step.

    >>> resolved_sources(nn.Linear(1, 1, bias=False).requires_grad_(False).apply(lambda l: l.weight.fill_(1.0)),
    ...                  torch.tensor([[0.0], [90.0]]), probabilities=True)
    tensor([ True, False])
    """
    with torch.no_grad():
        z = net(x)[:, 0]
    finite: Tensor = z.isfinite()
    if not probabilities:
        return finite
    smaller = torch.sigmoid(-z.double().abs())
    return finite & (smaller > torch.finfo(z.dtype).eps)


def relative_of_small_steps(K: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """S_rel from S_ker.

    >>> relative_of_small_steps(torch.tensor([[2.0, -1.0], [-1.0, 4.0]]))
    tensor([[1.0000, 0.5000],
            [0.2500, 1.0000]])
    """
    return K.abs() / K.diagonal()[:, None]


def largest_stable_rate(net: nn.Module, x: Tensor) -> float:
    """1/λ_max of 2K/n: at this rate full-batch training on the squared loss does not diverge at the start.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> largest_stable_rate(net, torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    0.25
    """
    K = kernel_of_small_steps(net, x)
    return 1 / float(torch.linalg.eigvalsh(2 * K / len(K)).max())
