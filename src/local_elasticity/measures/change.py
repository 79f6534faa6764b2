"""How far one prediction moved. A change function is change(before, difference) → one number a prediction.

It is given the *difference* of the outputs, not the outputs after, because the engine knows differences far better than
two nearly equal numbers do. `before` and `difference` have k outputs on their last axis and broadcast on the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from local_elasticity.engine.loss import Kind, no_distribution
from local_elasticity.shapes import Float

Change = Callable[..., Tensor]


def euclidean(before: Float[Tensor, "*b k"], difference: Float[Tensor, "*c k"]) -> Float[Tensor, "*c"]:
    """‖difference‖₂; the absolute value where there is one output.

    >>> import torch
    >>> euclidean(torch.zeros(2), torch.tensor([3.0, 4.0]))
    tensor(5.)
    """
    size: Tensor = torch.linalg.vector_norm(difference, dim=-1)
    return size


def manhattan(before: Float[Tensor, "*b k"], difference: Float[Tensor, "*c k"]) -> Float[Tensor, "*c"]:
    """‖difference‖₁.

    >>> import torch
    >>> manhattan(torch.zeros(2), torch.tensor([3.0, -4.0]))
    tensor(7.)
    """
    return difference.abs().sum(-1)


def kl(before: Float[Tensor, "*b k"], difference: Float[Tensor, "*c k"], kind: Kind = "logits") -> Float[Tensor, "*c"]:
    """KL(after ‖ before) of the predicted distributions, the new one first (Dan et al., Definition 2).

    From logits z and their difference d, with p = softmax(z + d) and u = −(d − p·d),

        KL = log(1 + Σ p_i (e^{u_i} − 1 − u_i)),

    where nothing cancels: it is right to rounding for differences from 1e-9 to 1e3, and exactly 0 where nothing moved.
    Probabilities q that move by r·q have KL = Σ q ((1 + r) log(1 + r) − r). Binary outputs are k independent ones.

    >>> import torch
    >>> z, d = torch.tensor([0.0, 0.0], dtype=torch.float64), torch.tensor([1e-6, -1e-6], dtype=torch.float64)
    >>> kl(z, d)  # δᵀ(diag p − p pᵀ)δ / 2
    tensor(5.0000e-13, dtype=torch.float64)
    """
    if kind == "logits":
        return _kl_of_logits(before, difference)
    if kind == "binary_logits":
        zero = torch.zeros_like
        pairs = torch.stack([before, zero(before)], -1), torch.stack([difference, zero(difference)], -1)
        return _kl_of_logits(*pairs).sum(-1)
    if kind == "probabilities":
        return _kl_of_probabilities(before, difference)
    if kind == "binary_probabilities":
        return _kl_of_probabilities(torch.cat([before, 1 - before], -1), torch.cat([difference, -difference], -1))
    raise ValueError(f"change: kl needs a distribution, but {no_distribution(kind)}")


def for_kind(change: Change, kind: Kind) -> Change:
    """The change function as it reads outputs of this kind; only `kl` reads them in more than one way."""
    return partial(kl, kind=kind) if change is kl else change


def _kl_of_logits(z: Tensor, d: Tensor) -> Tensor:
    log_p = torch.log_softmax(z + d, dim=-1)
    p = log_p.exp()
    d = d.expand_as(p)
    d = d - d.gather(-1, p.argmax(-1, keepdim=True))  # KL does not see a common shift
    u = (p * d).sum(-1, keepdim=True) - d
    far = torch.exp(log_p + u) - p - p * u
    total = torch.where(u.abs() < 0.5, p * _expm1_minus(u), far).sum(-1)
    log_total = torch.logsumexp(log_p + u, dim=-1)
    return torch.where(log_total < 1, torch.log1p(total), log_total)


def _expm1_minus(u: Tensor) -> Tensor:
    """e^u − 1 − u for |u| < ½ by its series, u²/2 (1 + u/3 (1 + u/4 (1 + …)))."""
    u = u.clamp(-0.5, 0.5)
    series = torch.ones_like(u)
    for i in range(16, 2, -1):
        series = 1 + u / i * series
    return u * u / 2 * series


def _kl_of_probabilities(q: Tensor, dq: Tensor) -> Tensor:
    r = dq / q
    far = (1 + r) * torch.log1p(r) - r
    term = q * torch.where(r.abs() < 0.1, _bregman_series(r), torch.where(r <= -1, torch.ones_like(r), far))
    appeared = torch.where(dq > 0, torch.full_like(r, torch.inf), torch.zeros_like(r))
    return torch.where(q > 0, term, appeared).sum(-1)


def _bregman_series(r: Tensor) -> Tensor:
    """(1 + r) log(1 + r) − r = r²/2 − r³/6 + r⁴/12 − …, the n-th term being (−r)ⁿ/(n(n − 1)), for |r| < 0.1."""
    r = r.clamp(-0.1, 0.1)
    series = torch.zeros_like(r)
    for n in range(17, 1, -1):
        series = 1 / (n * (n - 1)) - r * series
    return r * r * series
