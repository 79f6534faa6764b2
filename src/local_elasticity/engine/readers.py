"""How a `Use` is read from the arguments of each function that the tape supports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from local_elasticity.engine.uses import (
    BroadcastUse,
    ConvolutionUse,
    EmbeddingUse,
    LinearUse,
    ScaleUse,
    Use,
    padding_of,
)


class Recorder(Protocol):
    """What records a forward pass."""

    def name(self, p: Any) -> str | None:
        """The name of a parameter, or of what is derived from parameters alone; None for anything else."""

    def common(self, result: Tensor) -> dict[str, Any]:
        """The arguments that all uses share."""


def _linear(seen: Recorder, result: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Use:
    return LinearUse(seen.name(weight), seen.name(bias), input.detach(), **seen.common(result))


def _addmm(
    seen: Recorder, result: Tensor, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Use | None:
    if beta != 1 or alpha != 1 or (seen.name(input) and input.shape != result.shape[-1:]):
        return None
    return LinearUse(seen.name(mat2), seen.name(input), mat1.detach(), **seen.common(result), transposed=True)


def _matmul(seen: Recorder, result: Tensor, input: Tensor, other: Tensor) -> Use | None:
    if other.ndim != 2 or seen.name(input) or input.ndim < 2:
        return None
    return LinearUse(seen.name(other), None, input.detach(), **seen.common(result), transposed=True)


def _convolution(
    seen: Recorder,
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Use | None:
    border = padding_of(padding, weight.shape[2:], dilation)
    if border is None or input.ndim != weight.ndim:
        return None
    options = {"kernel_size": weight.shape[2:], "stride": stride, "padding": border, "dilation": dilation}
    names = seen.name(weight), seen.name(bias)
    return ConvolutionUse(*names, input.detach(), **seen.common(result), options=options, groups=groups)


def _batch_norm(
    seen: Recorder,
    result: Tensor,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Use | None:
    if training or running_mean is None or running_var is None:
        return None
    channels = (1, -1, *[1] * (input.ndim - 2))
    normal = (input.detach() - running_mean.view(channels)) / (running_var.view(channels) + eps).sqrt()
    return ScaleUse(seen.name(weight), seen.name(bias), normal, **seen.common(result))


def _layer_norm(
    seen: Recorder,
    result: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Use:
    normal = F.layer_norm(input.detach(), normalized_shape, eps=eps)
    kept = len(normalized_shape)
    return ScaleUse(seen.name(weight), seen.name(bias), normal, **seen.common(result), kept=kept)


def _rms_norm(
    seen: Recorder,
    result: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Use:
    normal = F.rms_norm(input.detach(), normalized_shape, eps=eps)
    return ScaleUse(seen.name(weight), None, normal, **seen.common(result), kept=len(normalized_shape))


def _group_norm(
    seen: Recorder,
    result: Tensor,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Use:
    normal = F.group_norm(input.detach(), num_groups, eps=eps)
    return ScaleUse(seen.name(weight), seen.name(bias), normal, **seen.common(result))


def _embedding(
    seen: Recorder,
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Use | None:
    if max_norm is not None or scale_grad_by_freq:
        return None
    padding = None if padding_idx is None else padding_idx % len(weight)
    return EmbeddingUse(seen.name(weight), None, input, **seen.common(result), rows=len(weight), padding=padding)


def _expand(seen: Recorder, result: Tensor, input: Tensor, *sizes: Any) -> Use:
    return BroadcastUse(seen.name(input), None, result.new_ones(()), **seen.common(result), of=input.shape)


def _add(seen: Recorder, result: Tensor, input: Any, other: Any, *, alpha: float = 1) -> Use | None:
    p = input if seen.name(input) else other
    if alpha != 1 or (seen.name(input) and seen.name(other)):
        return None
    return BroadcastUse(seen.name(p), None, result.detach().new_ones(()), **seen.common(result), of=p.shape)


def _mul(seen: Recorder, result: Tensor, input: Any, other: Any) -> Use | None:
    p, factor = (input, other) if seen.name(input) else (other, input)
    if seen.name(factor):
        return None
    factor = factor.detach() if isinstance(factor, Tensor) else result.detach().new_tensor(factor)
    return BroadcastUse(seen.name(p), None, factor, **seen.common(result), of=p.shape)


READERS: dict[Any, Callable[..., Use | None]] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
    F.conv1d: _convolution,
    F.conv2d: _convolution,
    F.conv3d: _convolution,
    F.batch_norm: _batch_norm,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.embedding: _embedding,
    Tensor.expand: _expand,
    torch.add: _add,
    Tensor.add: _add,
    Tensor.__add__: _add,
    Tensor.__radd__: _add,
    torch.mul: _mul,
    Tensor.mul: _mul,
    Tensor.__mul__: _mul,
    Tensor.__rmul__: _mul,
}
"""How a use is read from the arguments of each supported function."""
