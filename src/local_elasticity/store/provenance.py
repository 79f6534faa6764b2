"""Provenance: what a measurement was made of, as short fingerprints that tell whether it is still the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from local_elasticity.engine.job import Engine
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.update import FromOptimizer, Update
from local_elasticity.store.fingerprint import fingerprint

Fingerprints = dict[str, str]
"""What → its fingerprint, or its value where that is short enough to read."""

ADDED_LATER = frozenset({"optimizer_groups"})
"""What earlier stores do not have. It is compared where both sides have it."""


def of_problem(problem: Problem) -> Fingerprints:
    """The network, its weights and buffers, and how it is stepped and read.

    >>> import torch, local_elasticity as le
    >>> one, other = (le.Problem.of(torch.nn.Linear(2, 1), "mse") for _ in range(2))
    >>> different(of_problem(one), of_problem(other))
    ['weights']
    """
    model = problem.model
    tensors = dict(problem.named_parameters())
    if isinstance(model, nn.Module):
        tensors |= dict(model.named_buffers())
    return {
        "network": fingerprint(model, apart=tensors.values()),
        "weights": fingerprint(tensors),
        "params": fingerprint(problem.stepped),
        "loss": problem.loss_name if problem.loss_is_named else of_function(problem.loss),
        "outputs": problem.kind,
        "output": "" if problem.output is None else of_function(problem.output),
        "mode": problem.mode,
        "dtype": str(problem.dtype or next(iter(tensors.values())).dtype),
        "device": str(next(iter(tensors.values())).device.type),
    }


def of_update(update: Update) -> str:
    """The rule with its numbers; of a live optimizer its state as well.

    >>> import local_elasticity as le
    >>> of_update(le.SGD(0.1))
    'SGD(step_size=0.1, weight_decay=0.0)'
    """
    if not isinstance(update, FromOptimizer):
        return of_rule(update)
    optimizer = update.optimizer
    options = {"clip_norm": update.clip_norm, "clip_value": update.clip_value, "drift": update.drift}
    given = "".join(f" {name}={value}" for name, value in options.items() if value not in (None, "keep"))
    return f"{type(optimizer).__name__} {fingerprint((type(optimizer), optimizer.state_dict()))}{given}"


def of_groups(update: Update, problem: Problem) -> Fingerprints:
    """Which parameters each group of a live optimizer holds; its state only numbers them."""
    if not isinstance(update, FromOptimizer):
        return {}
    names = {id(p): name for name, p in problem.named_parameters().items()}
    groups = [[names.get(id(p), "") for p in group["params"]] for group in update.optimizer.param_groups]
    return {"optimizer_groups": fingerprint(groups)}


def of_rule(rule: Update | Engine) -> str:
    """An update or engine of ours as it is written down; another by its fingerprint."""
    ours = type(rule).__module__.startswith("local_elasticity.")
    return repr(rule) if ours else f"{type(rule).__name__} {fingerprint(rule)}"


def of_function(function: Callable[..., Any]) -> str:
    """Its name, and its fingerprint."""
    return f"{getattr(function, '__qualname__', type(function).__name__)} {fingerprint(function)}"


def different(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """What is not the same, by name."""
    compared = [name for name in {**there, **here} if name not in ADDED_LATER or (name in there and name in here)]
    return [name for name in compared if there.get(name) != here.get(name)]


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
