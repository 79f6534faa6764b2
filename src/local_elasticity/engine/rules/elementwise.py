"""Rules of elementwise functions: f(h + δ) − f(h) in a form where nothing cancels."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from local_elasticity.engine import response
from local_elasticity.engine.difference import Difference, Pair, aligned, base_of, delta_of, pending_of, rule
from local_elasticity.engine.fast_paths.kernels import kernels_for
from local_elasticity.engine.supported import UnsupportedModelError

Change = Callable[[Tensor, Tensor], Tensor]
"""h [t, …] and d [c, t, …] → f(h + d) − f(h)."""


def on_gpu(kind: str) -> Callable[[Change], Change]:
    """On a GPU, the kernel of this name instead of many passes over memory."""

    def choosing(change: Change) -> Change:
        @wraps(change)
        def chosen(h: Tensor, d: Tensor) -> Tensor:
            kernels = kernels_for(d) if d.shape[1:] == h.shape else None
            return change(h, d) if kernels is None else kernels.changes_on_gpu(kind, h, d)

        return chosen

    return choosing


@rule(torch.relu, F.relu, Tensor.relu)
def relu(x: Any) -> Pair:
    pending = pending_of(x)
    if pending is not None:
        return torch.relu(base_of(x)), pending.computed(relu_of=base_of(x))
    h, d = _parts(x)
    return torch.relu(h), relu_change(h, d)


@on_gpu("relu")
def relu_change(h: Tensor, d: Tensor) -> Tensor:
    """max(h + d, 0) − max(h, 0) = max(d + min(h, 0), −max(h, 0))."""
    return torch.maximum(d + h.clamp(max=0), -h.clamp(min=0))


@rule(F.leaky_relu)
def leaky_relu(x: Any, negative_slope: float = 0.01) -> Pair:
    h, d = _parts(x)
    return F.leaky_relu(h, negative_slope), negative_slope * d + (1 - negative_slope) * relu_change(h, d)


def _clamped(x: Any, low: float, high: float) -> Pair:
    """Between the bounds both before and after, the difference is the same."""
    h, d = _parts(x)
    base = h.clamp(low, high)
    return base, torch.maximum(torch.minimum(d + (h - base), high - base), low - base)


@rule(F.elu)
def elu(x: Any, alpha: float = 1.0) -> Pair:
    """Below zero e^h expm1(d), subtracted where d is large."""
    h, d = _parts(x)
    before, below = torch.exp(h.clamp(max=0)), -relu_change(-h, -d)
    grown = torch.where(below < 1, before * torch.expm1(below), torch.exp((h + d).clamp(max=0)) - before)
    return F.elu(h, alpha), relu_change(h, d) + alpha * grown


@rule(torch.tanh, Tensor.tanh, F.tanh)
def tanh(x: Any) -> Pair:
    h, d = _parts(x)
    return torch.tanh(h), tanh_change(h, d)


@on_gpu("tanh")
def tanh_change(h: Tensor, d: Tensor) -> Tensor:
    """tanh(h + d) − tanh(h) = 2 (sigmoid(2h + 2d) − sigmoid(2h))."""
    return 2 * response.sigmoid_change(2 * h, 2 * d)


@rule(torch.sigmoid, Tensor.sigmoid, F.sigmoid)
def sigmoid(x: Any) -> Pair:
    h, d = _parts(x)
    return torch.sigmoid(h), sigmoid_change(h, d)


@on_gpu("sigmoid")
def sigmoid_change(h: Tensor, d: Tensor) -> Tensor:
    return response.sigmoid_change(h, d)


@rule(F.silu)
def silu(x: Any) -> Pair:
    h, d = _parts(x)
    return F.silu(h), _silu_change(h, d)


@on_gpu("silu")
def _silu_change(h: Tensor, d: Tensor) -> Tensor:
    return d * torch.sigmoid(h + d) + h * sigmoid_change(h, d)


@rule(F.softplus)
def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Pair:
    """log(1 + sigmoid(h) expm1(d)) for small d; d itself above the threshold."""
    h, d = _parts(x)
    h, d = beta * h, beta * d
    before, after = (F.softplus(one, 1.0, threshold) for one in (h, h + d))
    small = d.clamp(-1, 1)
    exact = torch.log1p(torch.sigmoid(h) * torch.expm1(small))
    linear, near = torch.minimum(h, h + d) > threshold, (d.abs() < 1) & (torch.maximum(h, h + d) <= threshold)
    return before / beta, torch.where(linear, d, torch.where(near, exact, after - before)) / beta


@rule(F.gelu)
def gelu(x: Any, approximate: str = "none") -> Pair:
    h, d = _parts(x)
    change = _gelu_tanh_change if approximate == "tanh" else _gelu_change
    return F.gelu(h, approximate=approximate), change(h, d)


@on_gpu("gelu")
def _gelu_change(h: Tensor, d: Tensor) -> Tensor:
    return d * torch.special.ndtr(h + d) + h * _normal_between(h, d)


@on_gpu("gelu_tanh")
def _gelu_tanh_change(h: Tensor, d: Tensor) -> Tensor:
    u, change = _gelu_argument(h, d)
    return d * (1 + torch.tanh(u + change)) / 2 + h * tanh_change(u, change) / 2


def _gelu_argument(h: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """√(2/π) (h + 0.044715 h³) and its change."""
    root, cubic = math.sqrt(2 / math.pi), 0.044715
    return root * (h + cubic * h**3), root * (d + cubic * d * (3 * h * h + 3 * h * d + d * d))


_NODES = {count: np.polynomial.legendre.leggauss(count) for count in (2, 3, 5, 10)}
"""Points and weights of Gauss and Legendre on [−1, 1]."""


def _normal_between(h: Tensor, d: Tensor) -> Tensor:
    """Φ(h + d) − Φ(h): the density integrated by Gauss and Legendre where d is small, subtracted where it is not."""
    small = d.clamp(-1, 1)
    density = torch.zeros_like(small)
    for node, weight in zip(*(part.tolist() for part in _NODES[_points(small)]), strict=True):
        density += weight / 2 * torch.exp(-(h + small * ((node + 1) / 2)).square() / 2)
    exact = small * density / math.sqrt(2 * math.pi)
    return torch.where(d.abs() < 1, exact, torch.special.ndtr(h + d) - torch.special.ndtr(h))


def _points(d: Tensor) -> int:
    """As many as the precision asks for; a GPU is not waited for to see how large d is."""
    if d.dtype == torch.float64 or d.is_cuda:
        return 10
    largest = float(d.abs().max())
    return 2 if largest < 0.01 else 3 if largest < 0.1 else 5


@rule(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
def add(x: Any, y: Any, *, alpha: float = 1) -> Pair | Difference:
    base = torch.add(_tensor(x, y), base_of(y), alpha=alpha)
    for one, other in ((x, y), (y, x)):
        pending = pending_of(one)
        if pending is not None and alpha == 1 and isinstance(other, Tensor) and one.shape == other.shape:
            plus = delta_of(other)
            together = pending if plus is None else pending.adding(plus)
            return Difference.of(base, None, pending=together)
    dx, dy = _aligned(x, base), _aligned(y, base)
    if dx is None or dy is None:
        only = dx if dy is None else alpha * dy if alpha != 1 else dy
        assert only is not None
        return base, _spread_over(only, base)
    return base, torch.add(dx, dy, alpha=alpha)


@rule(torch.neg, Tensor.neg, Tensor.__neg__, torch.negative, Tensor.negative)
def neg(x: Any) -> Pair:
    h, d = _parts(x)
    return -h, -d


@rule(torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__)
def mul(x: Any, y: Any) -> Pair:
    """(h + δ)(h′ + δ′) − h h′ = δ h′ + h δ′ + δ δ′."""
    h, g = base_of(x), base_of(y)
    base = h * g
    dx, dy = _aligned(x, base), _aligned(y, base)
    if dx is None or dy is None:
        only = h * dy if dx is None else dx * g
        return base, _spread_over(only, base)
    return base, _product_change(h, dx, g, dy, base)


def _product_change(h: Any, dx: Tensor, g: Any, dy: Tensor, base: Tensor) -> Tensor:
    for one, moved, other, also in ((h, dx, g, dy), (g, dy, h, dx)):
        alike = isinstance(other, Tensor) and other.dtype == moved.dtype and moved.shape[1:] == one.shape == base.shape
        kernels = kernels_for(moved) if alike else None
        found: Tensor | None = None if kernels is None else kernels.product_change_on_gpu(one, moved, other, also)
        if found is not None:
            return found
    return _spread_over(dx * g + (h + dx) * dy, base)


@rule(torch.square, Tensor.square)
def square(x: Any) -> Pair:
    h, d = _parts(x)
    return h * h, d * (2 * h + d)


@rule(torch.div, torch.divide, torch.true_divide, Tensor.div, Tensor.divide, Tensor.true_divide, Tensor.__truediv__)
def div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Pair:
    """(h + δ)/(g + ε) − h/g = (δ − (h/g) ε) / (g + ε)."""
    if rounding_mode is not None:
        raise UnsupportedModelError("division that rounds")
    h, g = base_of(x), base_of(y)
    base = h / g
    dx, dy = _aligned(x, base), _aligned(y, base)
    if dy is None:
        assert dx is not None
        return base, _spread_over(dx / g, base)
    over = -base * dy if dx is None else dx - base * dy
    return base, _spread_over(over / (g + dy), base)


@rule(torch.reciprocal, Tensor.reciprocal)
def reciprocal(x: Any) -> Pair:
    h, d = _parts(x)
    return 1 / h, -d / (h * (h + d))


@rule(torch.exp, Tensor.exp)
def exp(x: Any) -> Pair:
    h, d = _parts(x)
    base = torch.exp(h)
    return base, base * torch.expm1(d)


@rule(torch.expm1, Tensor.expm1)
def expm1(x: Any) -> Pair:
    h, d = _parts(x)
    return torch.expm1(h), torch.exp(h) * torch.expm1(d)


@rule(torch.log, Tensor.log)
def log(x: Any) -> Pair:
    h, d = _parts(x)
    return torch.log(h), torch.log1p(d / h)


@rule(torch.log1p, Tensor.log1p)
def log1p(x: Any) -> Pair:
    h, d = _parts(x)
    return torch.log1p(h), torch.log1p(d / (1 + h))


@rule(torch.sqrt, Tensor.sqrt)
def sqrt(x: Any) -> Pair:
    """d / (√h + √(h + d)); 0 if both are 0."""
    h, d = _parts(x)
    base, after = torch.sqrt(h), torch.sqrt(h + d)
    return base, torch.where(d == 0, 0, d / (base + after))


@rule(torch.rsqrt, Tensor.rsqrt)
def rsqrt(x: Any) -> Pair:
    h, d = _parts(x)
    root, after = torch.sqrt(h), torch.sqrt(h + d)
    return torch.rsqrt(h), -d / (root * after * (root + after))


@rule(torch.pow, Tensor.pow, Tensor.__pow__)
def power(x: Any, exponent: Any) -> Any:
    """Whole powers by products, others as h^p expm1(p log1p(d/h)) where d is small compared with h."""
    if isinstance(exponent, Tensor) and (exponent.ndim > 0 or delta_of(exponent) is not None):
        return _power_of_tensors(x, exponent)
    p = float(base_of(exponent))
    if p == 0.5:
        return sqrt(x)
    if p == -0.5:
        return rsqrt(x)
    if p == -1:
        return reciprocal(x)
    h, d = _parts(x)
    if p == int(p) and 1 <= p <= 8:
        return torch.pow(h, base_of(exponent)), _whole_power_change(h, d, int(p))
    return torch.pow(h, p), _power_change(h, d, p)


def _power_of_tensors(x: Any, exponent: Any) -> Pair:
    """(h + δ)^(p + ε) − h^p, where x may also be a number or not differ."""
    h, p = _tensor(x, exponent), base_of(exponent)
    base = torch.pow(h, p)
    d, moved = (_aligned(one, base) for one in (x, exponent))
    return base, _spread_over(_power_change(h, 0 * h if d is None else d, p, 0 if moved is None else moved), base)


def _power_change(h: Tensor, d: Tensor, p: Any, moved: Any = 0) -> Tensor:
    """h^p expm1((p + ε) log1p(δ/h) + ε log h), subtracted where δ is large."""
    base, share = torch.pow(h, p), d / h
    grown = (p + moved) * torch.log1p(share.clamp(-0.5, 0.5)) + torch.special.xlogy(moved, h.abs())
    near = (share.abs() < 0.5) & ((h > 0) | torch.as_tensor(moved == 0, device=h.device))
    return torch.where(near, base * torch.expm1(grown), torch.pow(h + d, p + moved) - base)


def _whole_power_change(h: Tensor, d: Tensor, p: int) -> Tensor:
    """d Σ_i (h + d)^i h^(p−1−i)."""
    after = h + d
    total = torch.ones_like(after)
    for i in range(1, p):
        total = total * after + h**i
    return d * total


@rule(torch.abs, Tensor.abs, torch.absolute, Tensor.absolute)
def absolute(x: Any) -> Pair:
    h, d = _parts(x)
    return torch.abs(h), relu_change(h, d) + relu_change(-h, -d)


@rule(torch.sin, Tensor.sin)
def sin(x: Any) -> Pair:
    h, d = _parts(x)
    return torch.sin(h), 2 * torch.cos(h + d / 2) * torch.sin(d / 2)


@rule(torch.cos, Tensor.cos)
def cos(x: Any) -> Pair:
    h, d = _parts(x)
    return torch.cos(h), -2 * torch.sin(h + d / 2) * torch.sin(d / 2)


@rule(torch.erf, Tensor.erf, torch.special.erf)
def erf(x: Any) -> Pair:
    """2 Φ(√2 h) − 1."""
    h, d = _parts(x)
    return torch.erf(h), 2 * _normal_between(math.sqrt(2) * h, math.sqrt(2) * d)


@rule(torch.clamp, Tensor.clamp, torch.clip, Tensor.clip)
def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """Between numbers, or between tensors, which may differ too."""
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        above = x if min is None else torch.maximum(x, min)
        return above if max is None else torch.minimum(above, max)
    return _clamped(x, -math.inf if min is None else min, math.inf if max is None else max)


@rule(torch.maximum, Tensor.maximum)
def maximum(x: Any, y: Any) -> Pair:
    """max(h + δ, g + ε) − max(h, g) = max(δ + (h − m), ε + (g − m)), m the larger."""
    h, g = base_of(x), base_of(y)
    base = torch.maximum(h, g)
    dx, dy = _aligned(x, base), _aligned(y, base)
    return base, torch.maximum(h - base if dx is None else dx + (h - base), g - base if dy is None else dy + (g - base))


@rule(torch.where)
def where(condition: Any, x: Any, y: Any) -> Pair:
    if isinstance(condition, Tensor) and delta_of(condition) is not None:
        raise UnsupportedModelError("where by a condition that moves")
    chosen = base_of(condition)
    base = torch.where(chosen, base_of(x), base_of(y))
    dx, dy = _aligned(x, base), _aligned(y, base)
    return base, _spread_over(torch.where(chosen, 0 if dx is None else dx, 0 if dy is None else dy), base)


@rule(torch.masked_fill, Tensor.masked_fill)
def masked_fill(x: Any, mask: Any, value: Any) -> Pair:
    if delta_of(value) is not None:
        raise UnsupportedModelError("masked_fill with a value that moves")
    h, d = _parts(x)
    base = torch.masked_fill(h, base_of(mask), base_of(value))
    return base, _spread_over(torch.masked_fill(aligned(d, base.ndim), base_of(mask), 0), base)


@rule(F.glu)
def glu(x: Any, dim: int = -1) -> Any:
    one, gate = torch.chunk(x, 2, dim)
    return one * torch.sigmoid(gate)


rule(torch.sub, torch.subtract, Tensor.sub, Tensor.subtract, Tensor.__sub__)(
    lambda x, y, *, alpha=1: add(x, y, alpha=-alpha)
)
rule(torch.rsub, Tensor.__rsub__)(lambda x, y, *, alpha=1: add(y, x, alpha=-alpha))
rule(Tensor.__rtruediv__, Tensor.__rdiv__)(lambda x, y: div(y, x))
rule(torch.clamp_min, Tensor.clamp_min)(lambda x, min: clamp(x, min))
rule(torch.clamp_max, Tensor.clamp_max)(lambda x, max: clamp(x, None, max))
rule(torch.minimum, Tensor.minimum)(lambda x, y: -torch.maximum(-x, -y))
rule(Tensor.where)(lambda x, condition, y: where(condition, x, y))
rule(F.hardtanh)(lambda x, min_val=-1.0, max_val=1.0: _clamped(x, min_val, max_val))
rule(F.relu6)(lambda x: _clamped(x, 0.0, 6.0))
rule(F.hardsigmoid)(lambda x: F.relu6(x + 3) / 6)
rule(F.hardswish)(lambda x: x * F.relu6(x + 3) / 6)
rule(F.mish)(lambda x: x * torch.tanh(F.softplus(x)))
rule(F.logsigmoid)(lambda x: -F.softplus(-x))
rule(F.softsign)(lambda x: x / (1 + torch.abs(x)))
rule(F.selu)(lambda x: 1.0507009873554804934193349852946 * F.elu(x, 1.6732632423543772848170429916717))
rule(F.celu)(lambda x, alpha=1.0: alpha * F.elu(x / alpha))


def _parts(x: Any) -> tuple[Tensor, Tensor]:
    delta = delta_of(x)
    assert delta is not None
    return base_of(x), delta


def _aligned(x: Any, base: Tensor) -> Tensor | None:
    delta = delta_of(x)
    return None if delta is None else aligned(delta, base.ndim)


def _tensor(x: Any, like: Any) -> Tensor:
    base = base_of(like)
    return base_of(x) if isinstance(x, Tensor) else torch.as_tensor(x, dtype=base.dtype, device=base.device)


def _spread_over(delta: Tensor, base: Tensor) -> Tensor:
    """A difference as large as the result that it belongs to, where a constant had more axes or places."""
    return delta.expand(len(delta), *base.shape) if delta.shape[1:] != base.shape else delta
