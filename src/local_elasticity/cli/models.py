"""Models and checkpoints that the command is given, checked before they are used."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from local_elasticity.clustering.networks import build_network
from local_elasticity.data.own import Examples
from local_elasticity.engine.inputs import cast_floats, take
from local_elasticity.engine.problem import Problem
from local_elasticity.training.checkpoints import find_model, load_weights

TRIED = 1024
"""Random inputs that small responses are timed on."""


def example_problem(model: str, shape: str, loss: str, device: str) -> tuple[Problem, tuple[Any, Any]]:
    """A network by name or factory, and random inputs of a shape with labels that the loss can read.

    >>> problem, (x, y) = example_problem("fnn-8", "3", "mse", "cpu")
    >>> x.shape, y.shape
    (torch.Size([1024, 3]), torch.Size([1024, 1]))
    """
    one = sizes(shape)
    with said("--shape", f"{TRIED} inputs of shape {shape} cannot be made"):
        x = torch.rand(TRIED, *one, generator=torch.Generator().manual_seed(0)).to(device)
    with said("--model", f"{model} cannot be made"):
        net = made_model(model) if ":" in model else build_network(model, one, loss=loss, seed=0)
    with said("--model", f"{model} cannot be measured"):
        problem = Problem.of(net.to(device), loss)
    with said("--shape", f"{model} does not take inputs of shape {shape}"), problem.bound() as bound:
        outputs = bound.outputs(bound.params, x[:1]).detach()
    labels = (
        torch.zeros(TRIED, dtype=torch.long)
        if loss in ("cross_entropy", "nll")
        else torch.zeros(TRIED, *outputs.shape[1:])
    )
    return problem, (x, labels.to(device))


def made_model(place: str, device: str = "cpu") -> nn.Module:
    """The model that `module:factory` makes, on a device; a ValueError says on one line why there is none.

    >>> made_model(".nets:make")
    Traceback (most recent call last):
    ValueError: --model: expected MODULE:FACTORY with the full name of a module, got '.nets:make'
    """
    if place.startswith((".", ":")):
        raise ValueError(f"--model: expected MODULE:FACTORY with the full name of a module, got {place!r}")
    with said("--model", f"{place} makes no model. Name a function that takes no arguments"):
        return find_model(place).to(device)


def problem_of(
    model: str,
    weights: Path | None,
    loss: str,
    device: str,
    examples: Examples,
    argument: str = "--weights",
    data: str = "--data",
) -> Problem:
    """The model that `module:factory` makes, with its weights, as a problem that takes these examples. Errors call the
    weights `argument`, and the examples `data`.

    Raises:
        ValueError, OSError: why there is no such model, or why it does not take the examples.
    """
    net = made_model(model, device)
    if weights is not None:
        load_weights(net, weights, argument)
    with said("--model", f"{model} cannot be measured"):
        problem = Problem.of(net, loss)
    with said(data, f"{model} does not take inputs of shape {examples.shape}"), problem.bound() as bound:
        bound.outputs(bound.params, cast_floats(take(examples.inputs, slice(2)), bound.dtype))
    return problem


def check_step_size(step_size: float, model: nn.Module) -> None:
    """Raise a ValueError where the weights cannot hold numbers as large as the step size."""
    largest = min((torch.finfo(p.dtype).max for p in model.parameters() if p.is_floating_point()), default=math.inf)
    if largest < step_size < math.inf:
        raise ValueError(f"--step-size: {step_size:g} is larger than the weights' largest number, {largest:.2g}")


def check_checkpoints(files: Sequence[Path]) -> None:
    """Raise a ValueError where a file is missing, before the first is read."""
    for file in files:
        if not file.exists():
            raise ValueError(f"CHECKPOINTS: there is no {file}")


@contextmanager
def said(argument: str, sentence: str) -> Iterator[None]:
    """Whatever code of the user or torch raises, as a ValueError that names the argument; those of ours, which name one
    already, pass as they are."""
    try:
        yield
    except Exception as error:
        if isinstance(error, ValueError) and re.match(r"(--)?[a-z_-]+: ", str(error)):
            raise
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(f"{argument}: {sentence} ({type(error).__name__}: {reason})") from error


def sizes(shape: str, argument: str = "--shape", such_as: str = "3,32,32") -> list[int]:
    """Whole numbers separated by commas; a ValueError names the argument."""
    found = [size.strip() for size in shape.split(",")]
    if not all(size.isascii() and size.isdigit() and int(size) > 0 for size in found):
        raise ValueError(f"{argument}: expected whole numbers separated by commas, such as {such_as}, got {shape!r}")
    return [int(size) for size in found]
