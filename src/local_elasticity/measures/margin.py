"""Decisions: by how much a prediction is right, and the loss of every example on its own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import vmap

from local_elasticity.engine.loss import IGNORED, NAMED, Kind, LossFunction

NAMES_A_CLASS = ("logits", "logits_by_place", "probabilities")
NAMES_A_SIDE = {"binary_logits": 0.0, "binary_probabilities": 0.5}
"""Kinds of outputs that decide for a class; and for a side of a threshold."""


def margins(outputs: Tensor, labels: Tensor, kind: Kind) -> Tensor | None:
    """By how much each of the outputs [b, …] is right, [b]: the output of the label minus the largest other one, or
    the distance from the threshold of a binary output. Over several places, such as tokens, the smallest counts. Below
    0 the prediction is wrong. None if the outputs are plain numbers, which decide nothing.

    >>> margins(torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]]), torch.tensor([0, 2]), "logits")
    tensor([ 1., -2.])
    """
    if kind in NAMES_A_SIDE:
        side = 2 * (labels.reshape(outputs.shape) > 0.5).to(outputs.dtype) - 1
        found = side * (outputs - NAMES_A_SIDE[kind])
        return found.flatten(1).amin(1) if found.ndim > 1 else found
    if kind not in NAMES_A_CLASS or outputs.ndim < 2 or outputs.shape[1] < 2:
        return None
    soft = labels.is_floating_point() and labels.shape == outputs.shape
    classes = (labels.argmax(1) if soft else labels.long()).unsqueeze(1)
    known = classes != IGNORED
    classes = classes.clamp_min(0)
    own = outputs.gather(1, classes)
    others = outputs.scatter(1, classes, -torch.inf).amax(1, keepdim=True)
    return torch.where(known, own - others, torch.inf).flatten(1).amin(1)


def losses(loss: LossFunction, outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of every example on its own, [b].

    >>> from local_elasticity.engine.loss import half_mse
    >>> losses(half_mse, torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 1.0]))
    tensor([0.5000, 2.0000])
    """
    if loss in NAMED:
        return vmap(lambda f, y: loss(f[None], y[None]))(outputs, labels)
    return torch.stack([loss(outputs[i : i + 1], labels[i : i + 1].clone()) for i in range(len(labels))])
