"""Rules of the functions that weights go into: linear layers, convolutions, normalisation with frozen statistics."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from local_elasticity.engine.difference import Pair, base_of, delta_of, parametric_rule
from local_elasticity.engine.steps import LayerStep, ScaleStep, Steps
from local_elasticity.engine.supported import UnsupportedModelError
from local_elasticity.engine.tape import patches


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
    """The same as a linear layer at every patch; ΔW_i is multiplied out where it has more places than that saves.

    Patches are rows with their channels last, and so are the images that come out: what is copied then lies together.
    """
    h, d = base_of(input), delta_of(input)
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    step = _layer_step(steps, weight, bias)
    if step is None:
        base = F.conv2d(h, weight, bias, **geometry, groups=groups)
        return base, None if d is None else _each_source(d, weight, geometry, groups)
    at_h, sizes = _rows(h[None], weight, geometry)
    at_d = None if d is None else _rows(d, weight, geometry)[0]
    W = weight.permute(0, 2, 3, 1).flatten(1)
    base = _as_images(F.linear(at_h, W, bias), sizes)[0]
    (places, size), o = step.a.shape[1:], len(W)
    if not step.weight:
        moved = None if at_d is None else F.linear(at_d, W)
    elif places * (2 * size + o) >= size * o:
        moved = _multiplied_out(step.multiplied_out, W, at_h, at_d)
    else:
        moved = _few_places(step, W, at_h, at_d)
    through = None if at_d is None or not step.decay else _as_images(F.linear(at_d, W), sizes)
    delta = None if moved is None else _as_images(moved, sizes)
    if step.bias:
        shift = step.q.sum(1)[:, None, :, None, None]
        delta = shift.expand(len(step.q), *base.shape) if delta is None else delta + shift
    return base, _decayed(delta, through, base, weight, bias, step)


def _each_source(d: Tensor, weight: Tensor, geometry: dict[str, Any], groups: int = 1) -> Tensor:
    """The convolution of every difference with the shared weights."""
    out: Tensor = F.conv2d(d.flatten(0, 1), weight, **geometry, groups=groups).unflatten(0, d.shape[:2])
    return out


def _rows(images: Tensor, weight: Tensor, geometry: dict[str, Any]) -> tuple[Tensor, torch.Size]:
    """Images [c, t, channels, …] as rows of patches [c, t · places, size of a patch], and [t, rows, columns]."""
    c, t = images.shape[:2]
    windows = patches(images.flatten(0, 1), weight.shape[2:], **geometry).permute(0, 4, 5, 2, 3, 1)
    return windows.reshape(c, -1, weight[0].numel()), torch.Size((t, *windows.shape[1:3]))


def _as_images(moved: Tensor, sizes: torch.Size) -> Tensor:
    """[c, t · places, channels] as [c, t, channels, …], channels last in memory."""
    images: Tensor = moved.unflatten(1, sizes)
    return images.permute(0, 1, 4, 2, 3)


def _multiplied_out(moved: Tensor, W: Tensor, at_h: Tensor, at_d: Tensor | None) -> Tensor:
    """ΔW_i h + W⁺_i δ for each source."""
    at_all = torch.bmm(at_h.expand(len(moved), -1, -1), moved.transpose(1, 2))
    return at_all if at_d is None else torch.baddbmm(at_all, at_d, (W + moved).transpose(1, 2))


def _few_places(step: LayerStep, W: Tensor, at_h: Tensor, at_d: Tensor | None) -> Tensor:
    """Σ_l q_il (a_il·patch), patches of h and of δ met one after the other."""
    c, places, size = step.a.shape
    met = (step.a.reshape(c * places, size) @ at_h[0].T).reshape(c, places, -1)
    if at_d is None:
        return torch.bmm(met.transpose(1, 2), step.q)
    met = torch.baddbmm(met, step.a, at_d.transpose(1, 2))
    return torch.baddbmm(F.linear(at_d, W), met.transpose(1, 2), step.q)


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
        raise UnsupportedModelError("batch_norm of the batch's own statistics")
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
