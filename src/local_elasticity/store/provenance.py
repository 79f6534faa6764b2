"""Provenance: what a measurement was made of, as short fingerprints that tell whether it is still the same."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from local_elasticity.engine.problem import Problem
from local_elasticity.engine.update import FromOptimizer, Update

Fingerprints = dict[str, str]
"""What → its fingerprint, or its value where that is short enough to read."""


def of_problem(problem: Problem) -> Fingerprints:
    """The network, its weights and buffers, and how it is stepped and read.

    >>> import torch, local_elasticity as le
    >>> one, other = (le.Problem.of(torch.nn.Linear(2, 1), "mse") for _ in range(2))
    >>> different(of_problem(one), of_problem(other))
    ['weights']
    """
    model = problem.model
    network = repr(model) if isinstance(model, nn.Module) else of_function(model)
    tensors = dict(problem.named_parameters())
    if isinstance(model, nn.Module):
        tensors |= dict(model.named_buffers())
    return {
        "network": of_text(network),
        "weights": of_tensors([(name, tensors[name]) for name in sorted(tensors)]),
        "params": of_text(" ".join(problem.steps)),
        "loss": problem.loss_name if problem.loss_is_named else of_function(problem.loss),
        "outputs": problem.kind,
        "output": "" if problem.output is None else of_function(problem.output),
        "mode": problem.mode,
        "dtype": str(problem.dtype or next(iter(tensors.values())).dtype),
        "device": str(next(iter(tensors.values())).device.type),
    }


def of_data(inputs: Any) -> str:
    """A pytree of tensors, with its structure; empty where there is nothing.

    >>> import torch
    >>> of_data(torch.zeros(2)) == of_data(torch.zeros(2)), of_data(torch.zeros(2)) == of_data(torch.zeros(2, 1))
    (True, False)
    """
    if inputs is None:
        return ""
    leaves, structure = tree_flatten(inputs)
    return of_tensors([(str(structure), torch.empty(0)), *(("", _as_tensor(leaf)) for leaf in leaves)])


def of_update(update: Update) -> str:
    """The rule with its numbers; of a live optimizer its state as well.

    >>> import local_elasticity as le
    >>> of_update(le.SGD(0.1))
    'SGD(step_size=0.1, weight_decay=0.0)'
    """
    if not isinstance(update, FromOptimizer):
        return repr(update)
    leaves, structure = tree_flatten(update.optimizer.state_dict())
    tensors = [("", leaf) if isinstance(leaf, Tensor) else (repr(leaf), torch.empty(0)) for leaf in leaves]
    return f"{type(update.optimizer).__name__} {of_tensors([(str(structure), torch.empty(0)), *tensors])}"


def of_function(function: Callable[..., Any]) -> str:
    """Its name, and a fingerprint of its source text or, where there is none, of its code."""
    name = getattr(function, "__qualname__", type(function).__name__)
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        text = name if code is None else code.co_code.hex()
    return f"{name} {of_text(text)}"


def of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def of_tensors(named: list[tuple[str, Tensor]]) -> str:
    """Names, dtypes, shapes and bytes, in this order."""
    digest = hashlib.sha256()
    for name, tensor in named:
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def different(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """What is not the same, by name."""
    return [name for name in {**there, **here} if there.get(name) != here.get(name)]


def in_words(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """What differs, with both values where they can be read.

    >>> in_words({"measure": "kl", "weights": "00ff"}, {"measure": "kernel", "weights": "0100"})
    'measure (kl there, kernel here), weights'
    """
    readable = ("measure", "update", "loss", "outputs", "mode", "dtype", "device", "engine", "source_batch_size")
    return ", ".join(
        f"{name} ({there.get(name)} there, {here.get(name)} here)" if name in readable else name
        for name in different(there, here)
    )


def _as_tensor(leaf: Any) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf
    array = np.asarray(leaf)
    return torch.from_numpy(array) if array.dtype.kind in "biuf" else torch.tensor(list(repr(array.tolist()).encode()))
