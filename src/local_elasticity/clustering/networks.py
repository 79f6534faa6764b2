"""Networks by name, from a factory, or a module of your own: one output for each example."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from local_elasticity.models.small import FullyConnectedResNet, cnn, fnn

Shape = Sequence[int]
Factory = Callable[[Shape], nn.Module]
WIDTH = {"fnn": 1024, "linear": 1024, "resnet": 512}

SMALLEST_IMAGE = 16
"""Pixels on a side that two convolutions and poolings leave something of; smaller images get a margin of zeros."""


def build_network(network: str | Factory | nn.Module, shape: Shape, *, loss: str, seed: int) -> nn.Module:
    """A network for inputs of this shape, with weights of its own.

    Args:
        network: `"fnn"` (two layers, ReLU), `"linear"` (the same without), `"resnet"` (fully connected), each with an
            optional width as in `"fnn-40960"`, `"cnn"` for square images (those below 16×16 get a margin of zeros); a
            function of the shape of one input that returns an `nn.Module`; or a module, which is copied and itself
            left as it is.
        loss: `"bce"` puts a sigmoid on top of the named ones; others have to end in one.
        seed: of the initialisation; the global random state is not touched.

    >>> build_network("fnn-64", (3,), loss="l2", seed=0)
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=3, out_features=64, bias=True)
      (2): ReLU()
      (3): Linear(in_features=64, out_features=1, bias=True)
    )
    """
    if isinstance(network, nn.Module):
        return copy.deepcopy(network).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(network, str):
            net = _named(network, shape)
            return nn.Sequential(*_layers(net), nn.Sigmoid()) if loss == "bce" else net
        if not callable(network):
            raise TypeError(f"network: expected a name, a factory or an nn.Module, got {type(network).__name__}")
        made = network(tuple(shape))
    if not isinstance(made, nn.Module):
        raise TypeError(
            f"network: expected a factory that returns an nn.Module, got one that returns {type(made).__name__}"
        )
    return made.float()


def check_outputs(net: nn.Module, x: Tensor, loss: str) -> None:
    """One number for each example, a probability for BCE; a ValueError says what came instead."""
    outputs = _outputs(net, x)
    if not isinstance(outputs, Tensor) or outputs.numel() != len(x):
        what = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(f"network: expected one output for each of {len(x)} examples, got {what}")
    if loss == "bce" and not ((outputs >= 0) & (outputs <= 1)).all():
        raise ValueError(
            'network: expected probabilities for loss="bce", got other numbers; end the network with nn.Sigmoid()'
        )


def _outputs(net: nn.Module, x: Tensor) -> Any:
    try:
        with torch.no_grad():
            return net.eval()(x)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        numbers = (
            ""
            if x.is_floating_point()
            else "; whole numbers are given to it as they are, so pass X.astype(float) where they are amounts"
        )
        raise ValueError(
            f"network: it does not read samples of shape {tuple(x.shape[1:])}, or not these ({error}){numbers}"
        ) from error


def _named(name: str, shape: Shape) -> nn.Module:
    kind, _, width = name.partition("-")
    if kind == "cnn" and not width:
        return _cnn(shape)
    if kind not in WIDTH or (width and not (width.isdigit() and int(width) > 0)):
        names = [*WIDTH, *(f"{kind}-<width>" for kind in WIDTH), "cnn"]
        raise ValueError(
            f"network: expected one of {', '.join(names)}, got {name!r}; or pass a factory or an nn.Module"
        )
    inputs, units = math.prod(shape), int(width) if width else WIDTH[kind]
    if kind == "resnet":
        return FullyConnectedResNet(inputs, width=units)
    return fnn(inputs, width=units, activation="relu" if kind == "fnn" else "linear")


def _cnn(shape: Shape) -> nn.Module:
    channels, side = (1, shape[0]) if len(shape) == 2 else (shape[0], shape[-1])
    if len(shape) not in (2, 3) or shape[-1] != shape[-2]:
        raise ValueError(
            'network: expected square images [n, H, W] or [n, C, H, W] for "cnn", got samples of shape '
            f"{tuple(shape)}; reshape them, or pass a network of your own"
        )
    missing = max(SMALLEST_IMAGE - side, 0)
    before: list[nn.Module] = [nn.Unflatten(1, (1, side))] if len(shape) == 2 else []
    if missing:
        before.append(nn.ZeroPad2d((missing // 2, missing - missing // 2) * 2))
    return nn.Sequential(*before, *cnn(channels=channels, size=side + missing))


def _layers(net: nn.Module) -> list[Any]:
    return list(net) if isinstance(net, nn.Sequential) else [net]
