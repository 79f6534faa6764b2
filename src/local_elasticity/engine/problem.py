"""The problem: a network, the loss it is stepped on, and which of its parameters step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from local_elasticity.engine.guard import held_still, mode_of
from local_elasticity.engine.loss import NAMED, Kind, LossFunction, cross_entropy, gradient_of, resolve_loss
from local_elasticity.shapes import Float

Inputs = Any
"""A tensor, or a pytree of tensors, whose first axis runs over examples. A dict is passed as keyword arguments, a
tuple as positional ones."""

Params = dict[str, Tensor]
Selector = str | Callable[[str, Tensor], bool] | Mapping[str, Tensor]
Mode = Literal["eval", "train"]


@dataclass(frozen=True)
class Problem:
    """A network f(x; w) ∈ Rᵏ, its loss ℓ(f, y), and the part of w that a step moves. Build one with `Problem.of`."""

    model: Callable[..., Any]
    loss_name: str
    loss: LossFunction
    kind: Kind
    steps: tuple[str, ...]
    mode: Mode = "eval"
    output: Callable[[Any], Tensor] | None = None
    given: Mapping[str, Tensor] | None = None
    dtype: torch.dtype | None = None
    weights: Mapping[str, Tensor] | None = None

    @classmethod
    def of(
        cls,
        model: Callable[..., Any],
        loss: str | LossFunction,
        *,
        output: Callable[[Any], Tensor] | None = None,
        params: Selector | None = None,
        mode: Mode = "eval",
        kind: Kind | None = None,
    ) -> Problem:
        """Describe a network and its loss. The model is read anew at every measurement and never changed.

        Args:
            model: any `nn.Module`, or a plain function `f(params, inputs)` together with `params={"w": tensor, …}`.
            loss: `"mse"`, `"half_mse"`, `"cross_entropy"`, `"bce"`, `"bce_logits"`, or a callable
                (outputs, labels) → scalar such as `torch.nn.CrossEntropyLoss()`, which is known to be the same.
            output: turns whatever the model returns into one tensor [b, …], for example `lambda out: out.logits`.
            params: which parameters step: a regular expression searched in their names, or a predicate
                (name, parameter) → bool. By default those that require a gradient now; layers that are unfrozen later
                need a new problem. A plain function needs them all.
            mode: `"eval"` (batch-norm statistics frozen, dropout off) or `"train"`, which is refused for a model with
                batch norm or dropout, whose predictions then depend on the batch or on chance.
            kind: what the outputs are (`"logits"`, `"probabilities"`, `"binary_logits"`, `"binary_probabilities"`,
                `"numbers"`); a named loss and torch's own know, any other callable is taken to be about
                numbers.

        >>> import torch, local_elasticity as le
        >>> problem = le.Problem.of(torch.nn.Linear(3, 2), "cross_entropy")
        >>> problem.kind, problem.steps
        ('logits', ('weight', 'bias'))
        """
        model = _unwrapped(model)
        name, function, kind = resolve_loss(loss, kind)
        if mode not in ("eval", "train"):
            raise ValueError(f'mode: "eval" or "train", not {mode!r}')
        if mode == "train":
            _refuse_random(model)
        steps = _selected(model, params)
        given = params if isinstance(params, Mapping) else None
        return cls(model, name, function, kind, steps, mode, output, given)

    def to(self, dtype: torch.dtype) -> Problem:
        """The same problem computed in another precision; the model itself stays as it is."""
        return replace(self, dtype=dtype)

    def at(self, weights: Mapping[str, Tensor]) -> Problem:
        """The same problem with other weights: parameters and buffers by name, for those that the model has now."""
        return replace(self, weights=weights)

    def lifted(self) -> Problem:
        """In float32, where part of the model is in half precision and none was asked for: steps would drown in it."""
        tensors = list(self.named_parameters().values())
        if isinstance(self.model, nn.Module):
            tensors += self.model.buffers()
        half = any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in tensors)
        return self.to(torch.float32) if half and self.dtype is None else self

    @property
    def loss_is_named(self) -> bool:
        """Whether the loss is one of those in `loss.py`, and not a callable of the user's."""
        return self.loss in NAMED

    @property
    def classifies(self) -> bool:
        """Whether the loss is the cross-entropy, ours or that of torch, so that its labels are classes."""
        return self.loss is cross_entropy

    @property
    def policy(self) -> str:
        """How the model is run while it is measured, in words."""
        if self.mode == "train":
            return "training mode"
        return "evaluation mode: batch-norm statistics frozen, dropout off"

    def named_parameters(self) -> dict[str, Tensor]:
        """The live parameters by name, those that do not step included."""
        if isinstance(self.model, nn.Module):
            return dict(self.model.named_parameters())
        return dict(self.given or {})

    @contextmanager
    def moment(self) -> Iterator[Moment]:
        """The problem at this moment of training, for as long as the context lasts; `lifted` where it is in half."""
        problem, other = self.lifted(), self.weights or {}
        parameters = {name: other.get(name, p) for name, p in self.named_parameters().items()}
        device = _only_device(parameters)
        with held_still(device, self.model), mode_of(self.model, self.mode == "train"):
            params = {name: problem._cast(parameters[name].detach()) for name in self.steps}
            constants = {name: problem._cast(p.detach()) for name, p in parameters.items() if name not in params}
            if isinstance(self.model, nn.Module):
                buffers = {name: other.get(name, b) for name, b in self.model.named_buffers()}
                constants |= {name: problem._cast(b.detach().clone()) for name, b in buffers.items()}
            yield Moment(problem, params, constants, device, next(iter(params.values())).dtype)

    def _cast(self, tensor: Tensor) -> Tensor:
        if tensor.is_inference():
            tensor = tensor.clone()
        return tensor.to(self.dtype) if self.dtype and tensor.is_floating_point() else tensor


@dataclass(frozen=True)
class Moment:
    """A problem with its weights read: the pure functions that engines differentiate and evaluate."""

    problem: Problem
    params: Params
    constants: Params
    device: torch.device
    dtype: torch.dtype

    @cached_property
    def made_of(self) -> Any:
        """What findings about a network depend on, its weights aside."""
        problem = self.problem
        modules = tuple(map(type, problem.model.modules())) if isinstance(problem.model, nn.Module) else ()
        return modules, problem.steps, problem.output, tuple(p.shape for p in self.params.values())

    def outputs(self, params: Params, inputs: Inputs) -> Tensor:
        """What the loss reads: the model's outputs [b, …] at the given parameters."""
        tensors = {**self.constants, **params}
        model, output = self.problem.model, self.problem.output
        if isinstance(model, nn.Module):
            args, kwargs = _arguments(inputs)
            result = functional_call(model, tensors, args, kwargs)
        else:
            result = model(tensors, inputs)
        result = output(result) if output else result
        if not isinstance(result, Tensor):
            raise TypeError(
                f"model: it returns a {type(result).__name__}, not a tensor; "
                "pass output= to Problem.of, for example output=lambda out: out.logits"
            )
        return result

    def predict(self, params: Params, inputs: Inputs) -> Float[Tensor, "b k"]:
        """The outputs as k numbers for each example."""
        return as_predictions(self.outputs(params, inputs))

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.problem.loss(outputs, labels)

    def loss_gradients(self, outputs: Tensor, labels: Tensor) -> Float[Tensor, "c batch k"]:
        """∂ℓ/∂f for outputs [c·B, …] and labels [c, B, …], the loss being the mean over each B."""
        c, batch = labels.shape[:2]
        each = gradient_of(self.problem.loss, outputs.detach(), labels.flatten(0, 1))
        if each is not None:
            return each.reshape(c, batch, -1) / batch
        with torch.enable_grad():
            read = outputs.detach().unflatten(0, (c, batch)).requires_grad_()
            total = torch.stack([self.loss(one, label) for one, label in zip(read, labels, strict=True)]).sum()
            gradient: Tensor = torch.autograd.grad(total, read)[0]
        return gradient.reshape(c, batch, -1)


def check_problem(problem: Any) -> None:
    """Raise a TypeError where a model was given in place of a problem."""
    if not isinstance(problem, Problem):
        raise TypeError(
            f"problem: le.Problem.of(model, loss) is wanted, not {type(problem).__name__}; a step needs a loss"
        )


def as_predictions(outputs: Tensor) -> Tensor:
    """Outputs [b, …] as [b, k]."""
    return outputs.flatten(1) if outputs.ndim > 1 else outputs[:, None]


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), inputs
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    return (inputs,), {}


def _unwrapped(model: Callable[..., Any]) -> Callable[..., Any]:
    """The module inside torch.compile, DataParallel and DistributedDataParallel."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        else:
            break
    if not callable(model):
        raise TypeError(f"model: an nn.Module or a function f(params, inputs) is wanted, not {type(model).__name__}")
    return model


def _selected(model: Callable[..., Any], params: Selector | None) -> tuple[str, ...]:
    if not isinstance(model, nn.Module):
        if not isinstance(params, Mapping) or not params:
            raise TypeError('params: a plain function needs its parameters, for example params={"w": tensor}')
        return tuple(name for name, p in params.items() if p.is_floating_point())
    floating = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
    if params is None:
        chosen = [name for name, p in floating.items() if p.requires_grad]
        if not chosen:
            raise ValueError(
                "model: none of its parameters requires a gradient, so a step would move nothing; "
                'pass params=".*" to step them all the same'
            )
        return tuple(chosen)
    if isinstance(params, str):
        chosen = [name for name in floating if re.search(params, name)]
    elif callable(params):
        chosen = [name for name, p in floating.items() if params(name, p)]
    else:
        raise TypeError("params: a regular expression or a predicate (name, parameter) → bool is wanted for a module")
    if not chosen:
        raise ValueError(f"params: nothing is selected; the parameters are named {', '.join(list(floating)[:8])}, …")
    return tuple(chosen)


def _refuse_random(model: Callable[..., Any]) -> None:
    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            what = "batch norm, so that predictions depend on the batch and running statistics would move"
        elif isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            what = "dropout, so that predictions are random"
        else:
            continue
        raise ValueError(f'mode: "train" is refused because {name or "the model"} is {what}; use mode="eval"')


def _only_device(parameters: Mapping[str, Tensor]) -> torch.device:
    devices = {p.device for p in parameters.values()}
    if len(devices) != 1:
        raise ValueError(
            f"model: its parameters lie on several devices ({', '.join(map(str, devices))}); one is needed"
        )
    return devices.pop()
