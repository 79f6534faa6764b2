"""Layouts of images in memory: torch's kernels on CPUs do not take each of them.

With channels last, the backward pass of a batch norm is wrong where a batch of one has other strides than usual, as
slices and views do, and that of a group norm ends the process where its input needs no gradient. So images and filters
are contiguous on CPUs, unless an engine lays them out otherwise to save time.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


def contiguous_on_cpus(tensor: Tensor) -> Tensor:
    """An image or a filter channel by channel, if it is on a CPU. The stride of an axis with one place means nothing,
    but torch takes the layout from it."""
    if tensor.ndim < 4 or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return tensor
    tensor = tensor.contiguous()
    usual = torch.empty(tensor.shape, device="meta").stride()
    return tensor if tensor.stride() == usual else tensor.as_strided(tensor.shape, usual, tensor.storage_offset())


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
    n, batch = batches.shape[:2]
    found = channels_last(batches.flatten(0, 1))
    return found.as_strided((n, batch, *found.shape[1:]), (batch * found.stride(0), *found.stride()))


def crashes(forward: Callable[[Any], Any], inputs: Any) -> bool:
    """Whether the backward pass of these inputs would end the process on a CPU, one example or two at a time."""
    with torch.enable_grad(), _GroupNorms() as seen:
        for few in (1, 2):
            forward(tree_map(itemgetter(slice(0, few)), inputs))
    return seen.crash


class _GroupNorms(TorchDispatchMode):
    """Looks at the inputs of group norms whose weights need a gradient."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.crash = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.native_group_norm.default:
            x, *learned = args[:3]
            needed = any(isinstance(one, Tensor) and one.requires_grad for one in learned)
            on_cpu = x.device.type == "cpu"
            self.crash = self.crash or (on_cpu and needed and not x.requires_grad and not x.is_contiguous())
        return func(*args, **(kwargs or {}))
