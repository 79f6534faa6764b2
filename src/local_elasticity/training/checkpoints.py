"""Probing saved checkpoints: the same history as that of a live monitor."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor, nn

from local_elasticity.engine.supported import refuse_unsupported
from local_elasticity.training.monitor import Monitor

ARGUMENT = "CHECKPOINTS"
"""What errors of `watch` begin with."""

NESTED = ("state_dict", "model_state_dict", "model", "net", "module")
"""Where checkpoints keep the weights, when not at their top."""

WRAPPERS = ("module.", "_orig_mod.", "model.", "net.")
"""What DDP, torch.compile and Lightning modules put before a parameter's name."""

IN_FOLDERS = ("model.safetensors", "pytorch_model.bin")
"""What the weights are called in a folder of Hugging Face's Trainer."""

STEP = re.compile(r"step[=_-]?(\d+)", re.IGNORECASE)
FOLDER = re.compile(r"(?:^|step|checkpoint)[=_-]?(\d+)$", re.IGNORECASE)
FRACTION = re.compile(r"(?<=[=_-])\d+\.\d+")
"""Patterns of the step in names (`step=120`, a folder `checkpoint-120`), and of numbers that are not steps
(`loss=0.25`)."""


def watch(checkpoints: Sequence[str | Path], model: nn.Module, sources: Any, **options: Any) -> Monitor:
    """Probe a model at every checkpoint, in the order of their steps; the history is that of a live monitor.

    Args:
        checkpoints: files written by `torch.save` (a state_dict, or a dict that holds one), read with
            `weights_only=True`, or by safetensors; or folders of Hugging Face's Trainer. One is read at a time. The
            step is what the checkpoint says, else `step=…` in its name, the last whole number there, or its folder's.
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
    files = [_weights_file(Path(file)) for file in checkpoints]
    steps = [read_checkpoint(file, model)[0] for file in files]
    if len(set(steps)) < len(steps):
        raise ValueError(f"CHECKPOINTS: several are of the same step ({steps}); put the step into their names")
    monitor = Monitor(model, sources, **{"every": 1, "budget": None, **options})
    for step, file in sorted(zip(steps, files, strict=True)):
        _load(model, file)
        monitor.probe(step)
    return monitor


def _load(model: nn.Module, file: Path) -> None:
    _put(model, read_checkpoint(file, model)[1], file, ARGUMENT)


def load_weights(model: nn.Module, file: Path, argument: str) -> None:
    """Put the weights of a file, or of a folder of Hugging Face's Trainer, into a model; nothing is unpickled.

    Raises:
        ValueError, OSError: if they cannot be read or do not fit the model; the message begins with `argument`.
    """
    _put(model, weights_in(file, model, argument), file, argument)


def weights_in(file: Path, model: nn.Module, argument: str) -> Mapping[str, Tensor]:
    """The weights of such a file under the names that the model gives them; raises as `load_weights` does."""
    if not file.exists():
        raise FileNotFoundError(f"{argument}: there is no {file}")
    return _read_weights(_weights_file(file, argument), model, argument)[1]


def _put(model: nn.Module, weights: Mapping[str, Tensor], file: Path, argument: str) -> None:
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError) as error:  # sparse, quantised or without values
        reason = str(error).splitlines()[-1].strip()
        raise ValueError(f"{argument}: the weights of {file} do not fit the model ({reason})") from error


def read_checkpoint(file: Path, model: nn.Module) -> tuple[int, Mapping[str, Tensor]]:
    """The step and the weights of a checkpoint, under the names that the model gives them."""
    content, weights = _read_weights(file, model, ARGUMENT)
    return _step(file, content), weights


def _read_weights(file: Path, model: nn.Module, argument: str) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
    """All that a file holds, and its weights under the names that the model gives them."""
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise ValueError("--model: it has no parameters, so that no step can be taken")
    refuse_unsupported(model, dict(model.named_parameters()), ())
    content = _content(file, parameter.device, argument)
    if not isinstance(content, Mapping):
        raise ValueError(f"{argument}: {file} holds a {type(content).__name__}, not weights; save a state_dict")
    weights = next((content[name] for name in NESTED if isinstance(content.get(name), Mapping)), content)
    return content, _renamed(file, weights, model, argument)


def _weights_file(file: Path, argument: str = ARGUMENT) -> Path:
    """The file itself, or the one in a folder that holds the weights."""
    if not file.is_dir():
        return file
    for name in IN_FOLDERS:
        if (file / name).exists():
            return file / name
    raise ValueError(f"{argument}: the folder {file} holds no {' or '.join(IN_FOLDERS)}; name the file with weights")


def _content(file: Path, device: torch.device, argument: str) -> Any:
    """The content of a file; a large file is memory-mapped. No pickled object is ever created."""
    if file.exists() and not file.is_file():
        raise ValueError(f"{argument}: {file} is not a regular file")
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file, device=str(device))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected pickle protocol", UserWarning)  # the error says what is wrong
            return torch.load(file, map_location=device, weights_only=True, mmap=is_zipfile(file))
    except FileNotFoundError:
        raise
    except ImportError as error:
        raise ValueError(f"{argument}: {file} needs the package safetensors: pip install safetensors") from error
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "it is empty or cut off")
        raise ValueError(f"{argument}: {file} cannot be read as weights alone ({reason}); save a state_dict") from error


def find(place: str, argument: str) -> Any:
    """The object that `module:name` names; the working folder is searched too."""
    module, _, name = place.partition(":")
    if not name:
        raise ValueError(f"{argument}: expected module:factory (for example my_project.nets:make_net), got {place!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{argument}: {place} is not there ({error})") from error
    finally:
        sys.path.pop(0)


def find_model(place: str) -> nn.Module:
    """The model that `module:factory` makes; the working folder is searched too."""
    factory = find(place, "--model")
    model = factory() if callable(factory) and not isinstance(factory, nn.Module) else factory
    if not isinstance(model, nn.Module):
        raise ValueError(f"--model: {place} makes a {type(model).__name__}, not an nn.Module")
    return model


def _step(file: Path, content: Mapping[str, Any]) -> int:
    for name in ("global_step", "step"):
        value = content.get(name)
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, int):
            if not 0 <= value < 1 << 63:
                raise ValueError(f"CHECKPOINTS: expected a step from 0 to 2^63 in {file}, got {value:.3g}")
            return value
    if told := STEP.search(file.stem):
        return int(told[1])
    if numbers := re.findall(r"\d+", FRACTION.sub("", file.stem)):
        return int(numbers[-1])
    if told := FOLDER.search(file.absolute().parent.name):
        return int(told[1])
    raise ValueError(
        f"CHECKPOINTS: expected a step in the name of {file}, got none; rename it, for example to step-100.pt"
    )


def _renamed(file: Path, weights: Mapping[str, Tensor], model: nn.Module, argument: str) -> Mapping[str, Tensor]:
    wanted = model.state_dict()
    weights = {str(name): value for name, value in weights.items()}
    while not set(wanted) <= set(weights):
        prefix = next((p for p in WRAPPERS if any(name.startswith(p) for name in weights)), None)
        if prefix is None:
            missing = ", ".join(sorted(set(wanted) - set(weights))[:3])
            raise ValueError(f"{argument}: {file} lacks {missing}, …; does --model make the model that was saved?")
        weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    for name, own in wanted.items():
        if (shape := getattr(weights[name], "shape", None)) != own.shape:
            raise ValueError(
                f"{argument}: {file}: {name} has the shape {shape and tuple(shape)}, in the model {tuple(own.shape)}; "
                "does --model make the model that was saved?"
            )
    return {name: weights[name] for name in wanted}
