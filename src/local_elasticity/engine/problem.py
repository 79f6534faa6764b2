"""The problem: a network, the loss it is stepped on, and which of its parameters step."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from local_elasticity.engine.guard import interruption, isolated, notes_on_autocast
from local_elasticity.engine.half_stored import HalfStored, keeps_half
from local_elasticity.engine.loss import NAMED, Kind, LossFunction, cross_entropy, gradient_of, nll, resolve_loss
from local_elasticity.engine.model_cache import stand_in, traits
from local_elasticity.engine.object_parts import unwrapped
from local_elasticity.engine.replica import Params, Reads, Replica
from local_elasticity.engine.supported import only_device, refuse_random, refuse_unsupported
from local_elasticity.shapes import Float

Inputs = Any
"""A tensor, or a pytree of tensors, whose first axis runs over examples. A dict is passed as keyword arguments, a
tuple as positional ones."""

Selector = str | Callable[[str, Tensor], bool] | Mapping[str, Tensor]
Mode = Literal["eval", "train"]

NOT_NORMALIZED = (
    "loss: the outputs do not come straight from a log_softmax, so that nll is computed as −f_y; learned examples have "
    "fewer digits than with nn.LogSoftmax"
)

REQUIRED_FIELDS = 5
"""The fields of a Problem without a default."""


@dataclass(frozen=True)
class Problem:
    """A network f(x; w) ∈ Rᵏ, its loss ℓ(f, y), and the part of w that a step moves. Build one with `Problem.of`.

    Attributes:
        model: the network.
        loss_name: what the loss is called in results.
        loss: (outputs, labels) → scalar.
        kind: what the outputs are, such as `"logits"`.
        stepped: the names of the parameters that a step moves.
        mode: `"eval"` or `"train"`.
        output: turns what the model returns into one tensor.
        params: the parameters of a plain function.
        dtype: the precision to compute in; None for the model's own.
        weights: other parameters and buffers by name; None for the model's own.
    """

    model: Callable[..., Any]
    loss_name: str
    loss: LossFunction
    kind: Kind
    stepped: tuple[str, ...]
    mode: Mode = "eval"
    output: Callable[[Any], Tensor] | None = None
    params: Mapping[str, Tensor] | None = None
    dtype: torch.dtype | None = None
    weights: Mapping[str, Tensor] | None = None
    by_default: bool = False
    """Whether the parameters that step are the default: those that require a gradient."""

    def __new__(cls, *args: Any, **fields: Any) -> Problem:
        if 0 < len(args) + len(fields) < REQUIRED_FIELDS:
            raise TypeError("problem: build one with le.Problem.of(model, loss)")
        return super().__new__(cls)

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
        """Describe a network and its loss. The model is read at every measurement and never changed.

        Args:
            model: any `nn.Module`, or a plain function `f(params, inputs)` together with `params={"w": tensor, …}`.
            loss: `"mse"`, `"half_mse"`, `"cross_entropy"`, `"nll"`, `"bce"`, `"bce_logits"`, or a callable
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

        Returns:
            The problem.

        Raises:
            ValueError, TypeError: what is wrong with an argument; the message begins with its name.

        >>> import torch, local_elasticity as le
        >>> problem = le.Problem.of(torch.nn.Linear(3, 2), "cross_entropy")
        >>> problem.kind, problem.stepped
        ('logits', ('weight', 'bias'))
        """
        model = unwrapped(model)
        if output is not None and not callable(output):
            raise TypeError(f"output: expected a function such as lambda out: out.logits, got {output!r}")
        if not callable(model):
            raise TypeError(f"model: expected an nn.Module or a function f(params, inputs), got {type(model).__name__}")
        name, function, kind = resolve_loss(loss, kind)
        if mode not in ("eval", "train"):
            raise ValueError(f'mode: "eval" or "train", not {mode!r}')
        if mode == "train":
            refuse_random(model)
        given = params if isinstance(params, Mapping) else None
        steps = selected(model, params)
        problem = cls(model, name, function, kind, steps, mode, output, given, by_default=params is None)
        refuse_unsupported(model, problem.named_tensors(), problem.stepped)
        return problem

    @property
    def steps(self) -> tuple[str, ...]:
        """Deprecated name of `stepped`."""
        warnings.warn("problem.steps is called problem.stepped now", DeprecationWarning, stacklevel=2)
        return self.stepped

    def to(self, dtype: torch.dtype) -> Problem:
        """The same problem computed in another precision; the model itself stays as it is.

        Args:
            dtype: such as `torch.float64`.

        Returns:
            A new problem.
        """
        return replace(self, dtype=dtype)

    def at(self, weights: Mapping[str, Tensor]) -> Problem:
        """The same problem with other weights: parameters and buffers by name, for those that the model has now.

        Args:
            weights: tensors by name; the others stay as they are.

        Returns:
            A new problem.
        """
        return replace(self, weights=weights)

    def promoted(self) -> Problem:
        """The problem in float32 if part of the model is in half precision and no precision was requested: rounding
        would hide the steps.

        Returns:
            A new problem, or this one.
        """
        return self.to(torch.float32) if self.dtype is None and self.half is not None else self

    @property
    def half(self) -> torch.dtype | None:
        """The half precision that the model, or a part of it, is in."""
        kinds = {tensor.dtype for tensor in self.named_tensors().values()}
        return next((kind for kind in (torch.bfloat16, torch.float16) if kind in kinds), None)

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

    def notes(self) -> list[str]:
        """Notes about how the model is run.

        Returns:
            Sentences for `response.notes`.
        """
        found = notes_on_autocast(self.device)
        if self.promoted() is not self:
            found.append("the model is in half precision; it is measured in float32")
        training = self.mode == "train"
        for module in self.model.modules() if isinstance(self.model, nn.Module) else ():
            own = type(module).train is not nn.Module.train or type(module).eval is not nn.Module.eval
            if own and module.training != training:
                name, call = type(module).__name__, "train()" if training else "eval()"
                found.append(
                    f"{name} has a train() or eval() of its own, which is not called; call model.{call} before"
                )
                break
        return found

    def check(self) -> None:
        """Raise a ValueError or TypeError if the model cannot be measured as it is now."""
        tensors = self.named_tensors()
        gone = [name for name in self.stepped if name not in tensors]
        if gone:
            raise ParametersChangedError(
                f"model: it no longer has the parameter {gone[0]}, which the problem steps; "
                "build a new one with le.Problem.of"
            )
        refuse_unsupported(self.model, tensors, self.stepped)

    @property
    def device(self) -> torch.device:
        """Where the model is; a ValueError if it is spread over several devices."""
        return only_device(self.named_parameters())

    @property
    def precision(self) -> torch.dtype:
        """What inputs are cast to and predictions computed in."""
        stepped = self.named_parameters()[self.stepped[0]].dtype
        return self.promoted().dtype or stepped.to_real()

    def named_parameters(self) -> dict[str, Tensor]:
        """The live parameters by name, those that do not step included.

        Returns:
            Tensors by name, not copied.
        """
        if isinstance(self.model, nn.Module):
            return dict(self.model.named_parameters())
        return dict(self.params or {})

    def named_tensors(self) -> dict[str, Tensor]:
        """The live parameters and buffers by name.

        Returns:
            Tensors by name, not copied.
        """
        buffers = self.model.named_buffers() if isinstance(self.model, nn.Module) else ()
        return {**self.named_parameters(), **dict(buffers)}

    @contextmanager
    def bound(self) -> Iterator[BoundProblem]:
        """The problem at this moment of training, for as long as the context lasts; `promoted` where it is in half.

        Returns:
            A context manager that gives a `BoundProblem`.
        """
        self.check()
        problem, other = self.promoted(), self.weights or {}
        own, tensors = self.named_parameters(), self.named_tensors()
        device = only_device(own)
        with isolated(device, self.model):
            parameters = {name: other.get(name, p).data for name, p in own.items()}
            params = {name: as_real(problem._cast(parameters[name])) for name in self.stepped}
            constants = {name: problem._constant(p) for name, p in parameters.items() if name not in params}
            buffers = {name: other.get(name, b) for name, b in tensors.items() if name not in own}
            constants |= {name: problem._cast(b.data).clone() for name, b in buffers.items()}
            names = {id(tensor): name for name, tensor in tensors.items()}
            replica = Replica(self.model, names, constants, training=self.mode == "train", dtype=problem.dtype)
            hooks = {name: list((own[name]._backward_hooks or {}).values()) for name in self.stepped}
            hooks = {name: found for name, found in hooks.items() if found}
            pairs = frozenset(name for name in self.stepped if own[name].is_complex())
            loss, output = replica.copies_of(None if self.loss_is_named else self.loss, self.output)
            problem = problem if loss is None else replace(problem, loss=loss)
            dtype = next(iter(params.values())).dtype
            bound = BoundProblem(problem, params, replica, device, dtype, hooks, pairs, output)
            try:
                yield bound
            except Exception as error:
                from local_elasticity.engine.job import name_example

                name_example(bound, error)
                raise

    def _constant(self, tensor: Tensor) -> Tensor:
        """A parameter that does not step: a layer's weight in half precision stays so in memory."""
        if self.dtype is not None and keeps_half(tensor, self.dtype):
            return HalfStored(tensor.clone() if tensor.is_inference() else tensor, self.dtype)
        return self._cast(tensor)

    def _cast(self, tensor: Tensor) -> Tensor:
        """`.data` has a version counter of its own, so that a write that is only noted breaks no backward pass."""
        if tensor.is_inference():
            tensor = tensor.clone()
        if self.dtype is None or not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        return tensor.to(self.dtype.to_complex() if tensor.is_complex() else self.dtype)


@dataclass(frozen=True)
class BoundProblem:
    """A problem with its weights read: the pure functions that engines differentiate and evaluate.

    `hooks` are those on stepped parameters (`Tensor.register_hook`), which change the gradient before a step. Complex
    parameters are real here, with one more axis of length 2; `pairs` names them.
    """

    problem: Problem
    params: Params
    replica: Replica
    device: torch.device
    dtype: torch.dtype
    hooks: Mapping[str, list[Callable[[Tensor], Tensor | None]]]
    pairs: frozenset[str]
    output: Callable[[Any], Tensor] | None = None
    """The problem's, as a copy where it has a state of its own."""
    examples: dict[str, Inputs] = field(default_factory=dict)
    """The examples that it was checked with, by the name of the argument, to name one that the model does not take."""

    @cached_property
    def made_of(self) -> Any:
        """A key for cached findings about a network; weights are not part of it. It holds no references to the user's
        objects."""
        problem = self.problem
        shapes = tuple(p.shape for p in self.params.values())
        return traits(problem.model), problem.stepped, stand_in(problem.output), shapes, problem.mode

    @cached_property
    def sizes(self) -> list[float]:
        """The norms of the weights, which show whether the weights have changed."""
        return sizes_of([*self.params.values(), *self.constants.values()])

    @cached_property
    def alters_gradients(self) -> bool:
        """Whether modules have backward hooks, which see and may change gradients on their way. They are made for one
        step's backward pass, so that only the loop runs them as they are meant."""
        modules = self.problem.model.modules() if isinstance(self.problem.model, nn.Module) else ()
        return any(module._backward_hooks or module._backward_pre_hooks for module in modules)

    @property
    def constants(self) -> Params:
        """The parameters that do not step, and the buffers."""
        return self.replica.constants

    def stepping(self, names: Collection[str]) -> BoundProblem:
        """The same moment with only these of its parameters stepping."""
        if len(names) == len(self.params):
            return self
        params = {name: p for name, p in self.params.items() if name in names}
        stay = {name: p for name, p in self._as_stored(self.params).items() if name not in names}
        problem = replace(self.problem, stepped=tuple(params))
        hooks = {name: found for name, found in self.hooks.items() if name in names}
        replica = self.replica.having({**self.constants, **stay})
        replica.effects = self.replica.effects
        return replace(self, problem=problem, params=params, replica=replica, hooks=hooks)

    def outputs(self, params: Params, inputs: Inputs) -> Tensor:
        """What the loss reads: the model's outputs [b, …] at the given parameters."""
        return self._in_own_precision(self.raw_outputs(params, inputs))

    def raw_outputs(self, params: Params, inputs: Inputs) -> Tensor:
        """The same in the precision that the model gives, which may have more digits than its weights."""
        return self._checked(self.replica(self._as_stored(params), inputs))

    def _in_own_precision(self, result: Tensor) -> Tensor:
        other = result.is_floating_point() and result.dtype != self.dtype
        return result.to(self.dtype) if other else result

    def _checked(self, result: Any) -> Tensor:
        if self.output is not None:
            try:
                result = self.output(result)
            except (AttributeError, KeyError, IndexError, TypeError) as error:
                raise ValueError(
                    f"output: it fails on what the model returns, a {type(result).__name__} "
                    f"({type(error).__name__}: {error})"
                ) from error
        if not isinstance(result, Tensor):
            raise TypeError(
                f"model: it returns a {type(result).__name__}, not a tensor; "
                "pass output= to Problem.of, for example output=lambda out: out.logits"
            )
        return result

    def watched(self, inputs: Inputs) -> Float[Tensor, "b k"]:
        """Predictions. The pass records what it writes, so that later passes copy only that."""
        result = self.replica.watch(self._as_stored(self.params), inputs, self._checked)
        result = self._in_own_precision(result)
        if self.replica.effects is not None and not self.replica.effects.writes:
            return as_predictions(result).detach()
        with torch.no_grad():
            return self.predict(self.params, inputs)

    def copied_hooks(self) -> Mapping[str, list[Callable[[Tensor], Tensor | None]]]:
        """The hooks on parameters with copies of what they close over: a step that is not taken moves no state."""
        if not isinstance(self.problem.model, nn.Module):
            return self.hooks
        made = self.replica.copy()
        return {name: [made.of(hook) for hook in hooks] for name, hooks in self.hooks.items()}

    def left_by_forward(self, params: Params) -> Params:
        """The parameters as the last pass left them: a forward pass may write some (`nn.Embedding(max_norm=…)`)."""
        written = self.replica.written
        return {name: as_real(written[name].detach()) if name in written else p for name, p in params.items()}

    def _as_stored(self, params: Params) -> Params:
        if not self.pairs:
            return params
        return {name: torch.view_as_complex(p) if name in self.pairs else p for name, p in params.items()}

    def predict(self, params: Params, inputs: Inputs) -> Float[Tensor, "b k"]:
        """The outputs as k numbers for each example."""
        return as_predictions(self.outputs(params, inputs))

    def step_gradient(
        self, leaves: Params, inputs: Inputs, labels: Tensor, *, reached: bool = False
    ) -> tuple[Tensor, Float[Tensor, "batch k"], Params]:
        """The outputs on one batch, ∂ℓ/∂f there, and ∇ℓ with respect to the `leaves`: all of them, or those that the
        loss reaches."""
        with torch.enable_grad():
            outputs = self.outputs(leaves, inputs)
        along = self.loss_gradients(outputs, labels[None])[0]
        return outputs.detach(), along, gradient(outputs, leaves, along.view_as(outputs), reached=reached)

    @property
    def loss_function(self) -> LossFunction:
        """The loss of the problem. That is −f_y itself where `nll` reads what no log_softmax gave: the sum of clamped
        probabilities changes with a step, and the cross-entropy would see it."""
        problem, effects = self.problem, self.replica.effects
        log_softmax = effects is None or effects.normalized
        return nll if problem.loss_name == "nll" and problem.classifies and not log_softmax else problem.loss

    def notes(self) -> list[str]:
        """Notes about how the loss is read."""
        return [NOT_NORMALIZED] if self.loss_function is not self.problem.loss else []

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.loss_function(outputs, labels if self.problem.loss_is_named else labels.clone())

    def watched_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss; a ValueError if it reads parameters, whose gradient would not be seen."""
        if self.problem.loss_is_named:
            return self.loss(outputs, labels)
        outside = {place: name for place, name in self.replica.names.items() if name in self.params}
        with Reads(outside, "loss: it reads the parameter {}; only what follows from the outputs is part of a step"):
            return self.loss(outputs, labels)

    def loss_gradients(self, outputs: Tensor, labels: Tensor) -> Float[Tensor, "c batch k"]:
        """∂ℓ/∂f for outputs [c·B, …] and labels [c, B, …], the loss being the mean over each B."""
        c, batch = labels.shape[:2]
        each = gradient_of(self.loss_function, outputs.detach(), labels.flatten(0, 1))
        if each is not None:
            return each.reshape(c, batch, -1) / batch
        with torch.enable_grad():
            read = outputs.detach().unflatten(0, (c, batch)).requires_grad_()
            total = torch.stack([self.loss(one, label) for one, label in zip(read, labels, strict=True)]).sum()
            gradient: Tensor = torch.autograd.grad(total, read)[0]
        return gradient.reshape(c, batch, -1)


def as_problem(problem: Any, loss: str | LossFunction | None = None) -> Problem:
    """The problem that was given, or that of a bare model with `loss`."""
    if isinstance(problem, Problem):
        if loss is not None:
            raise ValueError("loss: the problem has one already; leave it out")
        return problem
    if not isinstance(problem, nn.Module):
        raise TypeError(
            f"problem: expected le.Problem.of(model, loss) or an nn.Module with loss=, got {type(problem).__name__}"
        )
    if loss is None:
        raise ValueError('loss: a bare model needs one, for example loss="cross_entropy"')
    return Problem.of(problem, loss)


def at_weights(problem: Problem, weights: Mapping[str, Any], needed: Iterable[str], argument: str) -> Problem:
    """The problem with other weights, by name, among which are all that are needed; errors name the argument."""
    lacking = [name for name in needed if name not in weights]
    if lacking:
        raise ValueError(f"{argument}: {lacking[0]} is missing from the weights; pass model.state_dict()")
    own = problem.named_tensors()
    found = {name: weights[name] for name in own if name in weights}
    for name, tensor in found.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{argument}: {name} is a {type(tensor).__name__}; expected a tensor")
        if own[name].shape != tensor.shape:
            raise ValueError(
                f"{argument}: {name} has the shape {tuple(tensor.shape)}, in the model {tuple(own[name].shape)}"
            )
    return problem.at({name: tensor.to(own[name].device) for name, tensor in found.items()})


def as_predictions(outputs: Tensor) -> Tensor:
    """Outputs [b, …] as [b, k]."""
    return outputs.flatten(1) if outputs.ndim > 1 else outputs[:, None]


def leaves_of(params: Params) -> Params:
    """Tensors of the same values that gradients end at."""
    return {name: p.detach().requires_grad_() for name, p in params.items()}


def sizes_of(tensors: Iterable[Tensor]) -> list[float]:
    """The norm of each tensor, with one transfer from the device."""
    numbers = [_numbers(tensor) for tensor in tensors if tensor.numel()]
    if not numbers:
        return []
    exact = torch.float32 if numbers[0].device.type == "mps" else torch.float64
    return torch.stack(torch._foreach_norm(numbers, 2, dtype=exact)).tolist()


def _numbers(tensor: Tensor) -> Tensor:
    """The numbers that a tensor holds, those of a sparse one that are not zero, as plain floating-point numbers."""
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce().values()
    elif tensor.layout != torch.strided:
        tensor = tensor.values()
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    if type(tensor) is Tensor and tensor.is_floating_point():
        return tensor
    return tensor.float() if tensor.device.type == "mps" else tensor.double()


def gradient(
    outputs: Tensor, leaves: Params, cotangents: Tensor, *, retain: bool = False, reached: bool = False
) -> Params:
    """Σ cotangents · ∂outputs/∂leaf for every leaf, dense. A leaf that the outputs do not depend on has zeros, or is
    left out where only those `reached` are asked for. Raises a NoGradientError if the outputs depend on none.
    """
    found = reached_gradients(outputs, leaves, cotangents, retain=retain)
    if not found:
        raise NoGradientError(
            f"model: none of the parameters that step ({', '.join(list(leaves)[:3])}, …) reaches its outputs, "
            "so a step moves nothing; select others with params="
        )
    if reached:
        return found
    return {name: found[name] if name in found else torch.zeros_like(leaf) for name, leaf in leaves.items()}


def reached_gradients(outputs: Tensor, leaves: Params, cotangents: Tensor, *, retain: bool = False) -> Params:
    """Σ cotangents · ∂outputs/∂leaf for the leaves that the outputs depend on, dense."""
    if not outputs.requires_grad:
        return {}
    try:
        found = torch.autograd.grad(outputs, list(leaves.values()), cotangents, retain_graph=retain, allow_unused=True)
    except RuntimeError as error:
        if "use_reentrant" not in str(error) or interruption(error):
            raise
        raise NoGradientError(
            "model: checkpoint(..., use_reentrant=True) has no gradient with respect to single tensors; use "
            "use_reentrant=False"
        ) from error
    return {name: g.to_dense() for name, g in zip(leaves, found, strict=True) if g is not None}


class NoGradientError(ValueError):
    """The outputs have no gradient with respect to the parameters that step, whatever the engine."""


class ParametersChangedError(ValueError):
    """The model no longer has the parameters that a problem steps, after pruning or a parametrization, say."""


def as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _can_step(p: Tensor) -> bool:
    """Real and complex numbers can; a parameter without entries has nothing to move."""
    lazy = isinstance(p, UninitializedParameter)
    return (p.is_floating_point() or p.is_complex()) and (lazy or p.numel() > 0)


def selected(model: Callable[..., Any], params: Selector | None) -> tuple[str, ...]:
    """The names of the parameters that step."""
    if not isinstance(model, nn.Module):
        if not isinstance(params, Mapping) or not params:
            raise TypeError('params: a plain function needs its parameters, for example params={"w": tensor}')
        return tuple(name for name, p in params.items() if _can_step(p))
    floating = {name: p for name, p in model.named_parameters() if _can_step(p)}
    if params is None:
        chosen = [name for name, p in floating.items() if p.requires_grad]
        if not chosen:
            raise ValueError(
                "model: none of its parameters requires a gradient, so a step would move nothing; "
                'pass params=".*" to step them all the same, or a quantised model as it was before'
            )
        return tuple(chosen)
    if isinstance(params, str):
        try:
            chosen = [name for name in floating if re.search(params, name)]
        except re.error as error:
            raise ValueError(f"params: {params!r} is not a regular expression ({error})") from error
    elif callable(params):
        chosen = [name for name, p in floating.items() if params(name, p)]
    else:
        raise TypeError("params: expected a regular expression or a predicate (name, parameter) → bool for a module")
    if not chosen:
        raise ValueError(f"params: nothing is selected; the parameters are named {', '.join(list(floating)[:8])}, …")
    return tuple(chosen)
