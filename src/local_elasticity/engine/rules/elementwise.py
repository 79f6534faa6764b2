"""Rules of elementwise functions: f(h + δ) − f(h) in a form where nothing cancels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from local_elasticity.engine.difference import IN_PLACE, Pair, base_of, delta_of, rule
from local_elasticity.engine.supported import UnsupportedModelError

IN_PLACE.update(
    {
        torch.relu_: torch.relu,
        F.relu_: F.relu,
        F.leaky_relu_: F.leaky_relu,
        Tensor.relu_: Tensor.relu,
        Tensor.add_: torch.add,
        Tensor.__iadd__: torch.add,
        Tensor.sub_: torch.sub,
        Tensor.__isub__: torch.sub,
        Tensor.mul_: torch.mul,
        Tensor.__imul__: torch.mul,
        Tensor.tanh_: torch.tanh,
        Tensor.sigmoid_: torch.sigmoid,
    }
)


@rule(torch.relu, F.relu, Tensor.relu)
def relu(x: Any) -> Pair:
    h, d = _parts(x)
    return torch.relu(h), relu_change(h, d)


def relu_change(h: Tensor, d: Tensor) -> Tensor:
    """max(h + d, 0) − max(h, 0) = max(d + min(h, 0), −max(h, 0))."""
    return torch.maximum(d + h.clamp(max=0), -h.clamp(min=0))


@rule(F.leaky_relu)
def leaky_relu(x: Any, negative_slope: float = 0.01) -> Pair:
    h, d = _parts(x)
    return F.leaky_relu(h, negative_slope), negative_slope * d + (1 - negative_slope) * relu_change(h, d)


@rule(F.hardtanh)
def hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Pair:
    return _clamped(x, min_val, max_val)


@rule(F.relu6)
def relu6(x: Any) -> Pair:
    return _clamped(x, 0.0, 6.0)


def _clamped(x: Any, low: float, high: float) -> Pair:
    """Between the bounds both before and after, the difference is the same."""
    h, d = _parts(x)
    base = h.clamp(low, high)
    return base, torch.maximum(torch.minimum(d + (h - base), high - base), low - base)


@rule(F.elu)
def elu(x: Any, alpha: float = 1.0) -> Pair:
    h, d = _parts(x)
    below = -relu_change(-h, -d)
    return F.elu(h, alpha), relu_change(h, d) + alpha * torch.exp(h.clamp(max=0)) * torch.expm1(below)


@rule(torch.tanh, Tensor.tanh, F.tanh)
def tanh(x: Any) -> Pair:
    h, d = _parts(x)
    return torch.tanh(h), tanh_change(h, d)


def tanh_change(h: Tensor, d: Tensor) -> Tensor:
    """sinh(d) / (cosh(h) cosh(h + d)), subtracted where d is large."""
    small = d.clamp(-1, 1)
    exact = torch.sinh(small) * _sech(h) * _sech(h + small)
    return torch.where(d.abs() < 1, exact, torch.tanh(h + d) - torch.tanh(h))


def _sech(x: Tensor) -> Tensor:
    """1 / cosh(x), without overflow."""
    decay = torch.exp(-x.abs())
    return 2 * decay / (1 + decay.square())


@rule(torch.sigmoid, Tensor.sigmoid, F.sigmoid)
def sigmoid(x: Any) -> Pair:
    h, d = _parts(x)
    return torch.sigmoid(h), sigmoid_change(h, d)


def sigmoid_change(h: Tensor, d: Tensor) -> Tensor:
    """sigmoid(h + d) − sigmoid(h) = sinh(d/2) / (2 cosh(h/2) cosh((h + d)/2)) = ½ (tanh((h + d)/2) − tanh(h/2))."""
    return tanh_change(h / 2, d / 2) / 2


@rule(F.silu)
def silu(x: Any) -> Pair:
    h, d = _parts(x)
    return F.silu(h), d * torch.sigmoid(h + d) + h * sigmoid_change(h, d)


@rule(F.softplus)
def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Pair:
    """log(1 + sigmoid(h) expm1(d)) for small d."""
    if beta != 1:
        raise UnsupportedModelError("softplus with beta")
    h, d = _parts(x)
    small = d.clamp(-1, 1)
    exact = torch.log1p(torch.sigmoid(h) * torch.expm1(small))
    return F.softplus(h), torch.where(d.abs() < 1, exact, F.softplus(h + d) - F.softplus(h))


@rule(F.gelu)
def gelu(x: Any, approximate: str = "none") -> Pair:
    h, d = _parts(x)
    if approximate == "tanh":
        u, change = _gelu_argument(h, d)
        share, moved = (1 + torch.tanh(u + change)) / 2, tanh_change(u, change) / 2
    else:
        share, moved = torch.special.ndtr(h + d), _normal_between(h, d)
    return F.gelu(h, approximate=approximate), d * share + h * moved


def _gelu_argument(h: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """√(2/π) (h + 0.044715 h³) and its change."""
    root, cubic = math.sqrt(2 / math.pi), 0.044715
    return root * (h + cubic * h**3), root * (d + cubic * d * (3 * h * h + 3 * h * d + d * d))


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)


def _normal_between(h: Tensor, d: Tensor) -> Tensor:
    """Φ(h + d) − Φ(h): the density integrated by Gauss and Legendre where d is small, subtracted where it is not."""
    small = d.clamp(-1, 1)
    density = torch.zeros_like(small)
    for node, weight in zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True):
        density += weight / 2 * torch.exp(-(h + small * (node + 1) / 2).square() / 2)
    exact = small * density / math.sqrt(2 * math.pi)
    return torch.where(d.abs() < 1, exact, torch.special.ndtr(h + d) - torch.special.ndtr(h))


@rule(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
def add(x: Any, y: Any, *, alpha: float = 1) -> Pair:
    base = torch.add(_tensor(x, y), base_of(y), alpha=alpha)
    dx, dy = delta_of(x), delta_of(y)
    if dx is None or dy is None:
        only = dx if dy is None else alpha * dy
        assert only is not None
        return base, _spread_over(only, base)
    return base, torch.add(dx, dy, alpha=alpha)


@rule(torch.sub, Tensor.sub, Tensor.__sub__)
def sub(x: Any, y: Any, *, alpha: float = 1) -> Pair:
    return add(x, y, alpha=-alpha)


@rule(torch.rsub, Tensor.__rsub__)
def rsub(x: Any, y: Any) -> Pair:
    base, delta = sub(x, y)
    assert delta is not None
    return -base, -delta


@rule(torch.neg, Tensor.neg, Tensor.__neg__)
def neg(x: Any) -> Pair:
    h, d = _parts(x)
    return -h, -d


@rule(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
def mul(x: Any, y: Any) -> Pair:
    """(h + δ)(h′ + δ′) − h h′ = δ h′ + h δ′ + δ δ′."""
    h, g = base_of(x), base_of(y)
    dx, dy = delta_of(x), delta_of(y)
    base = h * g
    if dx is None or dy is None:
        only = h * dy if dx is None else dx * g
        return base, _spread_over(only, base)
    return base, dx * g + (h + dx) * dy


@rule(torch.div, Tensor.div, Tensor.__truediv__)
def div(x: Any, y: Any) -> Pair:
    if delta_of(y) is not None:
        raise UnsupportedModelError("division by an activation")
    h, d = _parts(x)
    return h / base_of(y), d / base_of(y)


def _parts(x: Any) -> tuple[Tensor, Tensor]:
    delta = delta_of(x)
    assert delta is not None
    return base_of(x), delta


def _tensor(x: Any, like: Any) -> Tensor:
    base = base_of(like)
    return base_of(x) if isinstance(x, Tensor) else torch.as_tensor(x, dtype=base.dtype, device=base.device)


def _spread_over(delta: Tensor, base: Tensor) -> Tensor:
    """A difference as large as the result that it belongs to, where a constant had more axes or places."""
    return delta.expand(len(delta), *base.shape) if delta.shape[1:] != base.shape else delta
