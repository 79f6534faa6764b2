"""Layouts of images in memory: torch's kernels on CPUs do not take each of them.

With channels last, the backward pass of a batch norm is wrong where a batch of one has other strides than a larger one
would have, as views do. That of a group norm ends the process where its weights need a gradient and its input does not.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from local_elasticity.engine.guard import DispatchMode, FunctionMode

CRASHES = (
    "torch's group norm ends the process in the backward pass on CPUs if its input has channels last and needs no "
    "gradient, as in the first layer or behind frozen layers"
)


def batches_of(examples: Tensor, size: int) -> Tensor:
    """Examples [n · size, …] as batches [n, size, …], each with the strides of the examples."""
    first, *rest = examples.stride()
    shape = len(examples) // size, size, *examples.shape[1:]
    return examples.as_strided(shape, (size * first, first, *rest), examples.storage_offset())


def channels_last(tensor: Tensor) -> Tensor:
    """Images and filters place by place instead of channel by channel; with one channel only the strides tell which."""
    if tensor.ndim != 4:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device, memory_format=torch.channels_last).copy_(
        tensor
    )


def batches_with_channels_last(batches: Tensor) -> Tensor:
    """Images [n, batch, …] in that layout, each batch with its usual strides."""
    if batches.ndim != 5:
        return batches
    return batches_of(channels_last(batches.flatten(0, 1)), batches.shape[1])


def is_usual(tensor: Tensor) -> bool:
    """Whether a tensor is laid out as torch does by default."""
    return tensor.ndim < 4 or tensor.stride() == torch.empty(tensor.shape, device="meta").stride()


class GroupNormsInTwo(FunctionMode):
    """Group norms with weights are two steps, a group norm without and an affine function: the backward pass of the
    first is only taken where its input needs a gradient, so that any layout is right."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _GROUP_NORMS and torch.is_grad_enabled():
            return _in_two(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


_GROUP_NORMS = {F.group_norm, torch.group_norm}


def _in_two(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    channels = (1, -1, *[1] * (input.ndim - 2))
    normal = F.group_norm(input, num_groups, eps=eps)
    normal = normal if weight is None else normal * weight.reshape(channels)
    return normal if bias is None else normal + bias.reshape(channels)


def group_norms_of(forward: Callable[[Any], Any], inputs: Any) -> GroupNorms:
    """The group norms that a network runs for these inputs, one example or two at a time."""
    with torch.enable_grad(), GroupNorms() as seen:
        for few in (1, 2):
            forward(tree_map(itemgetter(slice(0, few)), inputs))
    return seen


class GroupNorms(DispatchMode):
    """Looks at group norms on CPUs whose weights need a gradient.

    Attributes:
        weighted: whether there is one. Where its input is not laid out as usual, a backward pass to some parameters may
            end the process.
        crash: whether the input of one is laid out so and needs no gradient, so that a backward pass to all parameters
            ends the process.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weighted = self.crash = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_group_norm(func, args):
            x, *learned = args[:3]
            needed = any(isinstance(one, Tensor) and one.requires_grad for one in learned)
            self.weighted |= needed
            self.crash |= needed and not x.requires_grad and not is_usual(x)
        return func(*args, **(kwargs or {}))


def is_group_norm(func: Any, args: Any) -> bool:
    """Whether a kernel is a group norm on a CPU."""
    return func is torch.ops.aten.native_group_norm.default and args[0].device.type == "cpu"
