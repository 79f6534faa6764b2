"""Watching after the fact: the same history from saved weights."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from local_elasticity.training.monitor import Monitor

NESTED = ("state_dict", "model_state_dict", "model", "net", "module")
"""Where checkpoints keep the weights, when not at their top."""

WRAPPERS = ("module.", "_orig_mod.", "model.", "net.")
"""What DDP, torch.compile and Lightning modules put before a parameter's name."""


def watch(checkpoints: Sequence[str | Path], model: nn.Module, sources: Any, **options: Any) -> Monitor:
    """Probe a model at every checkpoint, in the order of their steps; the history is that of a live monitor.

    Args:
        checkpoints: files written by `torch.save` (a state_dict, or a dict that holds one), read with
            `weights_only=True`. The step is what the checkpoint says, or the last number in its name.
        model: a model of the same shape; its weights are replaced.
        sources, options: as for `Monitor`.

    >>> import tempfile, torch
    >>> net, x, y = torch.nn.Linear(2, 2), torch.randn(4, 2), torch.arange(4) % 2
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (0, 10):
    ...         torch.save(net.state_dict(), f"{folder}/weights-{step}.pt")
    ...     files = [f"{folder}/weights-10.pt", f"{folder}/weights-0.pt"]
    ...     watch(files, net, (x, y), loss="cross_entropy").history.steps
    [0, 10]
    """
    if not checkpoints:
        raise ValueError("CHECKPOINTS: name at least one file")
    read = [read_checkpoint(Path(file), model) for file in checkpoints]
    steps = [step for step, _ in read]
    if len(set(steps)) < len(steps):
        raise ValueError(f"CHECKPOINTS: several are of the same step ({steps}); put the step into their names")
    monitor = Monitor(model, sources, **{"every": 1, "budget": None, **options})
    for step, weights in sorted(read, key=lambda pair: pair[0]):
        model.load_state_dict(weights)
        monitor.probe(step)
    return monitor


def read_checkpoint(file: Path, model: nn.Module) -> tuple[int, Mapping[str, Tensor]]:
    """The step and the weights of a checkpoint, under the names that the model gives them."""
    try:
        content = torch.load(file, map_location=_device(model), weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"CHECKPOINTS: {file} cannot be read as weights alone ({reason}); save a state_dict"
        ) from error
    weights = next((content[name] for name in NESTED if isinstance(content.get(name), Mapping)), content)
    return _step(file, content), _renamed(file, weights, model)


def find_model(place: str) -> nn.Module:
    """The model that `module:factory` makes; the working folder is looked in as well."""
    module, _, name = place.partition(":")
    if not name:
        raise ValueError(f"--model: module:factory is wanted, for example my_project.nets:make_net, not {place!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        factory: Callable[[], Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--model: {place} is not there ({error})") from error
    finally:
        sys.path.pop(0)
    model = factory() if callable(factory) and not isinstance(factory, nn.Module) else factory
    if not isinstance(model, nn.Module):
        raise ValueError(f"--model: {place} makes a {type(model).__name__}, not an nn.Module")
    return model


def _step(file: Path, content: Mapping[str, Any]) -> int:
    for name in ("global_step", "step"):
        if isinstance(content.get(name), int):
            return int(content[name])
    numbers = re.findall(r"\d+", file.stem)
    if not numbers:
        raise ValueError(f"CHECKPOINTS: {file} tells no step; put a number into its name, for example step-100.pt")
    return int(numbers[-1])


def _renamed(file: Path, weights: Mapping[str, Tensor], model: nn.Module) -> Mapping[str, Tensor]:
    wanted = set(model.state_dict())
    while not wanted <= set(weights):
        prefix = next((p for p in WRAPPERS if any(name.startswith(p) for name in weights)), None)
        if prefix is None:
            missing = ", ".join(sorted(wanted - set(weights))[:3])
            raise ValueError(f"CHECKPOINTS: {file} lacks {missing}, …; does --model make the model that was saved?")
        weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    return {name: weights[name] for name in wanted}


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
