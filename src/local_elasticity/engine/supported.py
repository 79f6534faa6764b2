"""Which models can be measured. The others are refused with one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from local_elasticity.engine.object_parts import unwrapped


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if the message is empty."""
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


class UnsupportedModelError(ValueError):
    """An engine does not support this: a network that it has no rules for, or a step that it does not know."""


class ChangedChoiceError(UnsupportedModelError):
    """A step changes what a network chooses by its values, such as the experts of a token."""


def refuse_unsupported(model: Callable[..., Any], tensors: Mapping[str, Tensor], steps: tuple[str, ...]) -> None:
    """Raise an error if a model cannot be measured: scripted, sharded, lazy, or without values.

    `tensors` are its parameters and buffers, `steps` the names of those that step.
    """
    for module in model.modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError("model: expected an nn.Module, got a ScriptModule; pass the module it was made from")
        if isinstance(module, nn.parallel.DistributedDataParallel) and unwrapped(module) is module:
            raise TypeError(
                "model: its DistributedDataParallel is a subclass or has hooks, which cannot run in one process alone; "
                "pass model.module, or remove them for measuring"
            )
        if type(module).__name__ == "FullyShardedDataParallel":
            raise TypeError(f"model: it is wrapped in FSDP, {_GATHER}")
    only_device(tensors)
    for name, tensor in tensors.items():
        _refuse_without_values(name, tensor)
    for name in steps:
        _refuse_stepped(name, tensors[name])
    _refuse_overlap(tensors, steps)


_GATHER = (
    "so that no process holds all of its weights; load a full state dict into a plain copy of the model and pass that"
)


def _refuse_without_values(name: str, tensor: Tensor) -> None:
    if isinstance(tensor, (UninitializedParameter, nn.UninitializedBuffer)):
        raise ValueError(f"model: {name} has no shape yet; run one batch through the lazy modules first")
    if tensor.device.type == "meta":
        raise ValueError(f"model: {name} is on the meta device, so it has no values; load the weights first")
    if tensor.is_nested:
        raise TypeError(
            f"model: {name} is a nested tensor, which cannot be copied; register a padded one, "
            "torch.nested.to_padded_tensor(x, 0.0)"
        )
    if type(tensor).__name__ == "DTensor":
        raise TypeError(f"model: {name} is a DTensor, {_GATHER}")


def _refuse_stepped(name: str, p: Tensor) -> None:
    if type(p).__torch_dispatch__ is not Tensor.__torch_dispatch__ or p.layout is not torch.strided:
        raise TypeError(
            f"model: {name} is a {type(p).__name__} of layout {p.layout}, and only plain dense tensors can be stepped; "
            "measure the model before it is quantised or made sparse, or leave the parameter out with params="
        )
    if getattr(p, "_post_accumulate_grad_hooks", None):
        raise ValueError(
            f"model: {name} has a post-accumulate-grad hook, which cannot run without training; remove it for measuring"
        )


def _refuse_overlap(tensors: Mapping[str, Tensor], steps: tuple[str, ...]) -> None:
    """Refuse two names for the same memory if a step moves only one of them: in training the other would move too."""
    places = sorted(
        (tensor.untyped_storage()._cdata, tensor.storage_offset(), _end(tensor), name)
        for name, tensor in tensors.items()
        if tensor.layout is torch.strided and tensor.numel()
    )
    moving = set(steps)
    for (storage, _, end, one), (other_storage, start, _, other) in pairwise(places):
        if storage == other_storage and start < end and (one in moving or other in moving):
            raise ValueError(
                f"model: {one} and {other} share memory but are not the same tensor, so that a step on one moves both; "
                "register one tensor under both names instead"
            )


def _end(tensor: Tensor) -> int:
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return int(tensor.storage_offset()) + 1 + sum((size - 1) * stride for size, stride in steps)


def refuse_random(model: Callable[..., Any]) -> None:
    """Raise an error if training mode makes predictions random or dependent on the batch."""
    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            what = "batch norm, so that predictions depend on the batch and running statistics would move"
        elif isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            what = "dropout, so that predictions are random"
        else:
            continue
        raise ValueError(f'mode: "train" is refused because {name or "the model"} is {what}; use mode="eval"')


def only_device(parameters: Mapping[str, Tensor]) -> torch.device:
    """The device that all parameters are on."""
    devices = {p.device for p in parameters.values()}
    if len(devices) != 1:
        raise ValueError(
            f"model: its parameters are on several devices ({', '.join(sorted(map(str, devices)))}); "
            "move it to one with model.to(device), or load it without device_map"
        )
    return devices.pop()
