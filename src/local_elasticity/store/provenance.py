"""Provenance: what a measurement was made of, as short fingerprints that show whether it is still the same."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import platform
import types
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import local_elasticity
from local_elasticity.engine.job import Engine
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.update import FromOptimizer, Update
from local_elasticity.measures.measure import Measure
from local_elasticity.measures.registry import is_ours
from local_elasticity.store.fingerprint import (
    EMPTY,
    PLAIN,
    added_attributes,
    changes_containers,
    fingerprint,
    given_attributes,
    lasting_attributes,
)

Fingerprints = dict[str, str]
"""What → its fingerprint, or its value where that is short enough to read."""

ADDED_LATER = frozenset({"optimizer_groups", "optimizer_attributes"})
"""What earlier stores do not have. It is compared where both sides have it."""

NOT_OF_THE_RULE = frozenset({"lr", "differentiable", "foreach", "fused", "capturable"})
"""Settings of an optimizer that change along a run, or that say how a step is computed and not which."""

CHANGING = (list, dict, set)
"""Containers that a function which closes over them may fill along a run."""

OF_SCHEDULERS = frozenset({"step", "_opt_called"})
"""What a scheduler of learning rates sets on an optimizer, to count its steps."""


def of_problem(problem: Problem) -> Fingerprints:
    """The network, its weights and buffers, and how it is stepped and read.

    >>> import torch, local_elasticity as le
    >>> one, other = (le.Problem.of(torch.nn.Linear(2, 1), "mse") for _ in range(2))
    >>> different(of_problem(one), of_problem(other))
    ['weights']
    """
    tensors = problem.named_tensors()
    return {
        "network": fingerprint(problem.model, apart=tensors.values()),
        "weights": fingerprint(tensors),
        "params": fingerprint(problem.stepped),
        "loss": problem.loss_name if problem.loss_is_named else of_function(problem.loss),
        "outputs": problem.kind,
        "output": "" if problem.output is None else of_function(problem.output),
        "mode": problem.mode,
        "dtype": str(problem.dtype or next(iter(tensors.values())).dtype),
        "device": str(next(iter(tensors.values())).device.type),
    }


def of_examples(sources: tuple[Any, Tensor], targets: Any, target_labels: Tensor | None) -> Fingerprints:
    """The inputs and labels of the sources, and the targets, with labels where those are read."""
    return {
        "sources": fingerprint(sources[0]),
        "labels": fingerprint(sources[1]),
        "targets": fingerprint(targets if target_labels is None else (targets, target_labels)),
    }


def of_measure(measure: Measure) -> str:
    """The name of a measure of ours; the functions of another."""
    return _named_or(of_function, measure)


def _named_or(described: Callable[[Any], str], measure: Measure) -> str:
    functions = [one for one in (measure.compute, measure.normalize) if one is not None]
    return measure.name if is_ours(measure) else " ".join(map(described, functions))


def of_probes(
    problem: Problem,
    sources: tuple[Any, Tensor],
    targets: Any,
    target_labels: Tensor | None,
    measures: Mapping[str, Measure | str | Callable[..., Any]],
    update: Update | None,
    *,
    approximate: bool = False,
) -> Fingerprints:
    """What all probes of a training run share: examples, measures by name, update, loss, and how outputs are read.

    What changes along the run is left out: weights, precision, the parameters that step, the learning rate, state and
    groups of a live optimizer, and what functions of the user's refer to.

    >>> import torch, local_elasticity as le
    >>> problem = le.Problem.of(torch.nn.Linear(2, 1), "mse")
    >>> y, steps = torch.ones(2), (le.SGD(0.1), le.SGD(0.2))
    >>> in_words(*(of_probes(problem, (torch.eye(2), y), None, None, {}, step) for step in steps))
    'update (SGD(step_size=0.1, weight_decay=0.0) there, SGD(step_size=0.2, weight_decay=0.0) here)'
    """

    def of(measure: Measure | str | Callable[..., Any]) -> str:
        if isinstance(measure, str):
            return measure
        return _named_or(of_code, measure) if isinstance(measure, Measure) else of_code(measure)

    return {
        **of_examples(*tree_map(_in_one_precision, (sources, targets, target_labels))),
        **{f"measure {name}": of(measure) for name, measure in measures.items()},
        "update": "" if update is None else of_lasting_update(update),
        "response": "its limit for small steps" if approximate else "exact",
        "loss": problem.loss_name if problem.loss_is_named else of_code(problem.loss),
        "outputs": problem.kind,
        "output": "" if problem.output is None else of_code(problem.output),
        "mode": problem.mode,
    }


def _in_one_precision(leaf: Any) -> Any:
    """The precision of examples follows that of the model, which may change."""
    return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def of_lasting_update(update: Update) -> str:
    """The rule with its numbers; of a live optimizer its class, the settings that it was made with other than the
    learning rate, the numbers and texts that its class adds when it is made, and how gradients are clipped and drift is
    counted.
    """
    if not isinstance(update, FromOptimizer):
        if type(update).__module__.startswith("local_elasticity."):
            return repr(update)
        return f"{of_code(type(update))} {fingerprint(_settled(getattr(update, '__dict__', {}), 2))}"
    optimizer = update.optimizer
    settings = {name: value for name, value in optimizer.defaults.items() if name not in NOT_OF_THE_RULE}
    added = {
        name: value
        for name, value in lasting_attributes(optimizer, "torch").items()
        if name not in OF_SCHEDULERS and isinstance(value, (*PLAIN, tuple))
    }
    return f"{type(optimizer).__name__} {fingerprint((of_code(type(optimizer)), settings, added))}{_options(update)}"


def of_code(function: Any) -> str:
    """The name of a function, or of the class of anything else that is called, and a fingerprint of its code and of
    what it was made with: numbers and texts in defaults, closures, plain containers and dataclasses, and those that an
    object got from the arguments of its class. What else it refers to may change along a run and is left out.

    >>> of_code(lambda r: r + 1) == of_code(lambda r: r + 1), of_code(lambda r: r + 1) == of_code(lambda r: r + 2)
    (True, False)
    """
    return f"{_called(function)} {fingerprint(_code(function))}"


def _called(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _code(function: Any, depth: int = 4) -> Any:
    if isinstance(function, functools.partial):
        return _code(function.func, depth), _settled(function.args, depth), _settled(function.keywords, depth)
    if isinstance(function, (operator.itemgetter, operator.attrgetter, operator.methodcaller)):
        return _settled(function.__reduce__(), depth)
    owner = getattr(function, "__self__", None)
    function = inspect.unwrap(getattr(function, "__func__", function))
    if isinstance(function, types.FunctionType):
        held = [cell.cell_contents for cell in function.__closure__ or () if cell != EMPTY]
        held = [one for one in held if not (isinstance(one, CHANGING) and changes_containers(function.__code__))]
        made_with = _settled((function.__defaults__, function.__kwdefaults__, held), depth)
        return function.__code__, made_with, None if _is_network(owner) else _made_with(owner, depth)
    if not isinstance(function, type):
        constants = [getattr(function, name, None) for name in getattr(function, "__constants__", ())]
        return _code(type(function), depth), _settled(constants, depth), _made_with(function, depth)
    if function.__module__.split(".")[0] in ("torch", "builtins"):
        return function.__qualname__
    methods = [(name, one.__code__) for name, one in vars(function).items() if isinstance(one, types.FunctionType)]
    return function.__qualname__, methods


def _made_with(value: Any, depth: int) -> Any:
    """The attributes that an object of a user's class was given when it was made and that none of its methods sets
    later."""
    given = given_attributes(value)
    return [(name, _settled(one, depth - 1)) for name, one in given.items()] if depth else None


def _settled(value: Any, depth: int) -> Any:
    """Numbers and texts, also in containers and dataclasses, and the code of functions. Anything else may change along
    a run and is left out."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Enum):
        return value.name
    if not depth:
        return ""
    if isinstance(value, (list, tuple)):
        return [_settled(one, depth - 1) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted(repr(one) for one in value if isinstance(one, PLAIN))
    if isinstance(value, Mapping):
        return [(_settled(key, depth - 1), _settled(one, depth - 1)) for key, one in value.items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value).__qualname__, _made_with(value, depth)
    return _code(value, depth - 1) if callable(value) and not _is_network(value) else ""


def _is_network(value: Any) -> bool:
    """Whether an object has weights to train; its attributes are those of the model, or of a part of it."""
    return isinstance(value, nn.Module) and any(True for _ in value.parameters())


def _options(update: FromOptimizer) -> str:
    options = {"clip_norm": update.clip_norm, "clip_value": update.clip_value, "drift": update.drift}
    return "".join(f" {name}={value}" for name, value in options.items() if value not in (None, "keep"))


def of_update(update: Update) -> str:
    """The rule with its numbers; of a live optimizer its state as well.

    >>> import local_elasticity as le
    >>> of_update(le.SGD(0.1))
    'SGD(step_size=0.1, weight_decay=0.0)'
    """
    if not isinstance(update, FromOptimizer):
        return of_rule(update)
    optimizer = update.optimizer
    return f"{type(optimizer).__name__} {fingerprint((type(optimizer), optimizer.state_dict()))}{_options(update)}"


def of_optimizer(update: Update, problem: Problem) -> Fingerprints:
    """What the state of a live optimizer does not contain: which parameters are in each group, since the state only
    numbers them, and attributes that its class adds to torch's, such as a clipping norm.
    """
    if not isinstance(update, FromOptimizer):
        return {}
    optimizer = update.optimizer
    names = {id(p): name for name, p in problem.named_parameters().items()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    groups = [[names.get(id(p), "") for p in group["params"]] for group in optimizer.param_groups]
    return {
        "optimizer_groups": fingerprint(groups),
        "optimizer_attributes": fingerprint(_added_to(optimizer), apart=held),
    }


def _added_to(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    added = added_attributes(optimizer, "torch")
    return {name: value for name, value in added.items() if name not in OF_SCHEDULERS}


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


def versions() -> dict[str, str]:
    """The versions that matter to a number.

    >>> sorted(versions())
    ['local_elasticity', 'python', 'torch']
    """
    return {
        "local_elasticity": local_elasticity.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
