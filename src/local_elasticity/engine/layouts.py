"""Layouts of images in memory: torch's kernels on CPUs do not take each of them.

With channels last, the backward pass of a batch norm is wrong where a batch of one has other strides than a larger one
would have, as views do, and that of a group norm ends the process where its input needs no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from local_elasticity.engine.guard import DispatchMode

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


def crashes(forward: Callable[[Any], Any], inputs: Any) -> bool:
    """Whether the backward pass of these inputs would end the process on a CPU, one example or two at a time."""
    with torch.enable_grad(), _GroupNorms() as seen:
        for few in (1, 2):
            forward(tree_map(itemgetter(slice(0, few)), inputs))
    return seen.crash


class _GroupNorms(DispatchMode):
    """Looks at the inputs of group norms whose weights need a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.crash = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.native_group_norm.default:
            x, *learned = args[:3]
            needed = any(isinstance(one, Tensor) and one.requires_grad for one in learned)
            on_cpu = x.device.type == "cpu"
            self.crash = self.crash or (on_cpu and needed and not x.requires_grad and not x.is_contiguous())
        return func(*args, **(kwargs or {}))
