"""Rules of the functions that weights go into: linear layers, convolutions, normalisation with frozen statistics."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from local_elasticity.engine.difference import Pair, UnreadableError, base_of, delta_of, parametric_rule
from local_elasticity.engine.steps import LayerStep, ScaleStep, Steps


@parametric_rule(F.linear)
def linear(steps: Steps, input: Any, weight: Tensor, bias: Tensor | None = None) -> Pair:
    """W⁺(h + δ) + b⁺ − W h − b = W δ + ΔW (h + δ) + Δb."""
    h, d = base_of(input), delta_of(input)
    base = F.linear(h, weight, bias)
    step = _layer_step(steps, weight, bias)
    delta = None if d is None else F.linear(d, weight)
    if step is None:
        return base, delta
    delta = _decayed(delta, delta, base, weight, bias, step)
    c, places, o = len(step.q), h.shape[:-1].numel(), base.shape[-1]
    met = _met(step, h, d, c, places)
    moved = torch.bmm(met, step.q) if delta is None else torch.baddbmm(delta.reshape(c, places, o), met, step.q)
    return base, moved.reshape(c, *base.shape)


def _met(step: LayerStep, h: Tensor, d: Tensor | None, c: int, places: int) -> Tensor:
    """a_il·(h + δ) where the weight steps, and 1 more where the bias does: [c, places, l]."""
    of_source, size = step.a.shape[1:]
    if not step.weight:
        return h.new_ones(c, places, of_source)
    met = (h.reshape(places, size) @ step.a.reshape(-1, size).T).reshape(places, c, of_source).transpose(0, 1)
    if d is not None:
        met = torch.baddbmm(met, d.reshape(c, places, size), step.a.transpose(1, 2))
    return met + 1 if step.bias else met.contiguous()


@parametric_rule(F.conv2d)
def conv2d(
    steps: Steps,
    input: Any,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Pair:
    """The same as a linear layer at every patch; ΔW_i is multiplied out where it has more places than that saves."""
    h, d = base_of(input), delta_of(input)
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    base = F.conv2d(h, weight, bias, **geometry, groups=groups)
    step = _layer_step(steps, weight, bias)
    if step is None:
        return base, None if d is None else _each_source(d, weight, geometry, groups)
    c, (places, size), o = len(step.q), step.a.shape[1:], len(weight)
    many = step.weight and places * (2 * size + o) >= size * o
    delta = (_multiplied_out if many else _few_places)(step, h, d, weight, geometry)
    if step.bias:
        moved = step.q.sum(1)[:, None, :, None, None]
        delta = moved.expand(c, *base.shape) if delta is None else delta + moved
    through = _each_source(d, weight, geometry) if step.decay and d is not None else None
    return base, _decayed(delta, through, base, weight, bias, step)


def _each_source(d: Tensor, weight: Tensor, geometry: dict[str, Any], groups: int = 1) -> Tensor:
    """The convolution of every difference with the shared weights."""
    out: Tensor = F.conv2d(d.flatten(0, 1), weight, **geometry, groups=groups).unflatten(0, d.shape[:2])
    return out


def _multiplied_out(
    step: LayerStep, h: Tensor, d: Tensor | None, weight: Tensor, geometry: dict[str, Any]
) -> Tensor | None:
    """ΔW_i h for all sources as one convolution with c·o channels, and W⁺_i δ as one product for each source."""
    c, o, t = len(step.q), len(weight), len(h)
    moved = step.multiplied_out
    filters = moved.reshape(c * o, *weight.shape[1:])
    at_h = F.conv2d(h, filters, **geometry)
    delta: Tensor = at_h.unflatten(1, (c, o)).transpose(0, 1)
    if d is None:
        return delta.contiguous()
    patches = F.unfold(d.flatten(0, 1), weight.shape[2:], **geometry)
    columns = patches.unflatten(0, (c, t)).transpose(1, 2).flatten(2)
    at_d = torch.bmm(weight.flatten(1) + moved, columns)
    return delta + at_d.reshape(c, o, t, *at_h.shape[2:]).transpose(1, 2)


def _few_places(
    step: LayerStep, h: Tensor, d: Tensor | None, weight: Tensor, geometry: dict[str, Any]
) -> Tensor | None:
    """Σ_l q_il (a_il·patch), with the patches of h and of δ met one after the other."""
    delta = None if d is None else _each_source(d, weight, geometry)
    if not step.weight:
        return delta
    c, places = step.a.shape[:2]
    t = len(h)
    filters = step.a.reshape(c * places, *weight.shape[1:])
    met = F.conv2d(h, filters, **geometry)
    size = met.shape[2:]
    met = met.unflatten(1, (c, places)).permute(1, 2, 0, 3, 4).reshape(c, places, -1)
    if d is not None:
        patches = F.unfold(d.flatten(0, 1), weight.shape[2:], **geometry)
        met = torch.baddbmm(met, step.a, patches.unflatten(0, (c, t)).transpose(1, 2).flatten(2))
    moved: Tensor = torch.bmm(step.q.transpose(1, 2), met).unflatten(2, (t, *size)).transpose(1, 2)
    return moved.contiguous() if delta is None else delta + moved


@parametric_rule(F.batch_norm)
def batch_norm(
    steps: Steps,
    input: Any,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Pair:
    """γ⁺x̂⁺ + β⁺ − γx̂ − β = (γ + Δγ) δ/σ + Δγ x̂ + Δβ, with frozen statistics."""
    if training or running_mean is None or running_var is None:
        raise UnreadableError("batch_norm of the batch's own statistics")
    h, d = base_of(input), delta_of(input)
    base = F.batch_norm(h, running_mean, running_var, weight, bias, False, momentum, eps)
    channels = (1, -1, *[1] * (h.ndim - 2))
    inverse = (running_var.view(channels) + eps).rsqrt()
    step = steps.of_tensor.get(id(weight)) or steps.of_tensor.get(id(bias))
    scale = inverse if weight is None else weight.view(channels) * inverse
    delta = None if d is None else d * scale
    if not isinstance(step, ScaleStep):
        return base, delta
    if step.weight is not None:
        normal = (h - running_mean.view(channels)) * inverse
        after = normal if d is None else normal + d * inverse
        moved = step.weight.view(len(step.weight), *channels) * after
        delta = moved if delta is None else delta + moved
    if step.bias is not None:
        moved = step.bias.view(len(step.bias), *channels)
        delta = moved.expand(len(moved), *h.shape) if delta is None else delta + moved
    return base, delta


def _layer_step(steps: Steps, weight: Tensor, bias: Tensor | None) -> LayerStep | None:
    step = steps.of_tensor.get(id(weight)) or steps.of_tensor.get(id(bias))
    return step if isinstance(step, LayerStep) else None


def _decayed(
    delta: Tensor | None,
    through: Tensor | None,
    base: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    step: LayerStep,
) -> Tensor | None:
    """Weight decay takes its share from W(h + δ) and from b, where they step; `through` is W δ."""
    if not step.decay:
        return delta
    offset = base.new_zeros(()) if bias is None else bias.view(-1, *[1] * (weight.ndim - 2))
    lost = torch.zeros_like(base)
    if step.weight:
        lost = lost + (base - offset)
        lost = lost if through is None else lost + through
    if step.bias:
        lost = lost + offset
    shrunk = (-step.decay * lost).expand(len(step.q), *base.shape)
    return shrunk if delta is None else delta + shrunk
