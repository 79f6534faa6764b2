"""Steps of a live optimizer: by formula for torch's SGD, Adam and AdamW, of others on a copy in float64 where the
optimizer's code allows it.

The displacement is p_after − p. In float32 that difference has no more digits than p, and a step that is small against
its weight is rounded to a few units in the last place. In float64 the rounding is below that of any float32 number.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from local_elasticity.engine.copier import Copier
from local_elasticity.engine.guard import interruption
from local_elasticity.engine.object_parts import NOTHING, storage_of, tried, without_finalizer
from local_elasticity.engine.problem import as_real
from local_elasticity.engine.replica import Params

Places = dict[str, tuple[int, int]]
"""Parameter name → its group in the optimizer, and its place in that group."""

PRECISIONS = (torch.float64, torch.float32)
"""In which steps are tried, the finest first."""

REFUSALS = (TypeError, RuntimeError, ValueError, AssertionError, LookupError, AttributeError)
"""What the code of an optimizer raises where it was not made for a precision, or does not find what it looks up."""

TRIED = 1 / 3
"""Every entry of the gradient that a step is tried with; no binary number, so that steps show their last digits."""

CLIPPED_ABOVE = 1e-6
"""What torch adds to the norm that it divides by."""


@dataclass(frozen=True)
class OptimizerCopy:
    """An optimizer with parameters and state of its own; build one with `OptimizerCopy.of`.

    Attributes:
        optimizer: the copy, whose state moves with every step.
        places: where it keeps each parameter.
        dtype: the precision that it steps in; None for that of its own parameters.
        unit: the relative rounding of weights after its step.
    """

    optimizer: torch.optim.Optimizer
    places: Places
    dtype: torch.dtype | None
    unit: float

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, places: Places) -> OptimizerCopy:
        """A copy of a live optimizer, in the finest precision that one step of another copy succeeds in.

        The rounding is read from the weights after that step, because an optimizer may accept float64 and still
        compute in float32. One that holds memory of its parameters steps in their precision.
        """
        holds_memory = _copied_with_memory(optimizer)[1]
        for dtype in () if holds_memory else PRECISIONS:
            trial = cls(_copied(optimizer), places, dtype, 0.0)
            try:
                after = trial._after_a_trial()
            except REFUSALS as error:
                if interruption(error):
                    raise
                continue
            return cls(_copied(optimizer), places, dtype, _unit(after))
        held = [optimizer.param_groups[i]["params"][j] for i, j in places.values()]
        return cls(_copied(optimizer), places, None, max(torch.finfo(p.dtype).eps for p in held))

    def copy(self) -> OptimizerCopy:
        """One with the same state, to step from where this one is."""
        return OptimizerCopy(_copied(self.optimizer), self.places, self.dtype, self.unit)

    def step(self, params: Params, gradient: Params) -> Params:
        """The displacement by a step from these parameters. Parameters without a gradient do not move."""
        held = self._held()
        for p in held.values():
            p.grad = None
        before = {name: self._put(held[name], params[name], g) for name, g in gradient.items()}
        try:
            type(self.optimizer).step(self.optimizer)
        except REFUSALS as error:
            raise ValueError(
                f"optimizer: {type(self.optimizer).__name__} cannot step on a dense gradient alone ({error}); "
                "use le.SGD, le.Adam or another optimizer"
            ) from error
        return {name: (as_real(held[name].detach()) - p).to(params[name].dtype) for name, p in before.items()}

    def _held(self) -> dict[str, Tensor]:
        return {name: self.optimizer.param_groups[i]["params"][j] for name, (i, j) in self.places.items()}

    def _put(self, p: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        """Make a parameter of the copy ready to step from a value. Returns the value as the copy holds it."""
        dtype = self.dtype or p.dtype.to_real()
        stored = torch.view_as_complex if p.is_complex() else Tensor.contiguous
        before = value.detach().to(dtype)
        if self.dtype is None:
            p.data.copy_(stored(before))
        else:
            p.data = stored(before.clone())
        p.grad = stored(gradient.detach().to(dtype, copy=True))
        state = self.optimizer.state[p]
        self.optimizer.state[p] = {key: _cast(one, p.dtype) for key, one in state.items()}
        return before

    def _after_a_trial(self) -> list[Tensor]:
        """The parameters after a step on a gradient with the same number everywhere."""
        held = self._held()
        values = {name: as_real(p.detach()) for name, p in held.items()}
        self.step(values, {name: torch.full_like(value, TRIED) for name, value in values.items()})
        return [as_real(p.detach()) for p in held.values()]


def _unit(tensors: list[Tensor]) -> float:
    """The unit of the coarsest precision that holds all these numbers, which stand for weights after a step."""
    fits = [dtype for dtype in (torch.bfloat16, torch.float32) if all(_holds(dtype, one) for one in tensors)]
    return float(torch.finfo(fits[0] if fits else tensors[0].dtype).eps)


def _holds(dtype: torch.dtype, tensor: Tensor) -> bool:
    return bool((tensor.to(dtype).to(tensor.dtype) == tensor).all())


def _copied(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """An optimizer of its own with parameters of its own."""
    return _copied_with_memory(optimizer)[0]


def _copied_with_memory(optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer, bool]:
    """The copy, and whether parameters are views of buffers that the optimizer holds. Those of the copy are then views
    of its own buffers."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    copies = {id(p): p.detach().clone().requires_grad_(p.requires_grad) for p in held}
    made: torch.optim.Optimizer = object.__new__(without_finalizer(type(optimizer)))
    known = {**copies, id(optimizer): made}
    identities = {place: id(one) for place, one in known.items()}
    copier = Copier(known=known, identities=identities, most_parts=math.inf, argument="optimizer")
    for p in held:
        vars(copies[id(p)]).update({key: copier.of(value) for key, value in vars(p).items()})
    for key, value in vars(optimizer).items():
        if key != "step":  # a scheduler's wrapper, which would step the user's
            vars(made)[key] = copier.of(value)
    made.state = defaultdict(dict, made.state)
    for group in made.param_groups:
        _keep_precision(made, group)
    buffers: dict[int | None, Tensor] = {place: tensor for tensor, place in copier.tensors}
    _check_gradients(optimizer, held, set(buffers))
    views = [(p, buffers[place]) for p in held if (place := _place(p)) in buffers]
    for p, buffer in views:
        memory = p.detach().new_empty(0)
        copies[id(p)].data = memory.set_(buffer.untyped_storage(), p.storage_offset(), p.shape, p.stride())
    return made, bool(views)


def _place(tensor: Tensor) -> int | None:
    """Where a tensor's memory is; None for a tensor without any."""
    storage = tried(storage_of, tensor)
    return None if storage is NOTHING else storage._cdata


def _check_gradients(optimizer: torch.optim.Optimizer, held: list[Tensor], buffers: set[int | None]) -> None:
    """Raise a ValueError if gradients of several parameters are views of a buffer that the optimizer holds."""
    places = [_place(p.grad) for p in held if p.grad is not None]
    if any(place in buffers and places.count(place) > 1 for place in set(places)):
        raise ValueError(
            f"optimizer: {type(optimizer).__name__} holds a buffer of which gradients are views, and a measurement "
            "does not write gradients there; let its step read p.grad, or use le.SGD, le.Adam or another optimizer"
        )


def _keep_precision(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    """Write down the ε that Adafactor would read from the precision of its parameters, so that it stays the same."""
    if isinstance(optimizer, torch.optim.Adafactor) and group["params"] and group["eps"][0] is None:
        group["eps"] = (torch.finfo(group["params"][0].dtype).eps, *group["eps"][1:])


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """State in the precision of its parameter; counters stay."""
    floating = isinstance(value, Tensor) and value.ndim and (value.is_floating_point() or value.is_complex())
    return value.to(dtype) if floating else value


def clipped(gradient: Params, norm: float | None, value: float | None) -> Params:
    """As torch.nn.utils.clip_grad_norm_ and then clip_grad_value_ leave it."""
    if norm is not None and gradient:
        total = torch.stack([torch.linalg.vector_norm(g) for g in gradient.values()]).square().sum().sqrt()
        share = (norm / (total + CLIPPED_ABOVE)).clamp(max=1.0)
        gradient = {name: share * g for name, g in gradient.items()}
    if value is not None:
        gradient = {name: g.clamp(-value, value) for name, g in gradient.items()}
    return gradient


def _sgd(w: Tensor, g: Tensor, group: Mapping[str, Any], state: Mapping[str, Any]) -> Tensor:
    g = (-g if group["maximize"] else g) + group["weight_decay"] * w
    momentum = float(group["momentum"])
    if momentum:
        buffer = state.get("momentum_buffer")
        velocity = g if buffer is None else momentum * buffer + (1 - group["dampening"]) * g
        g = g + momentum * velocity if group["nesterov"] else velocity
    return -float(group["lr"]) * g


def _adam(w: Tensor, g: Tensor, group: Mapping[str, Any], state: Mapping[str, Any]) -> Tensor:
    beta1, beta2 = (float(beta) for beta in group["betas"])
    rate, decay = float(group["lr"]), float(group["weight_decay"])
    g = -g if group["maximize"] else g
    if not group["decoupled_weight_decay"]:
        g = g + decay * w
    step = float(state.get("step", 0)) + 1
    first = beta1 * state.get("exp_avg", torch.zeros_like(w)) + (1 - beta1) * g
    second = beta2 * state.get("exp_avg_sq", torch.zeros_like(w)) + (1 - beta2) * g * g
    if group["amsgrad"]:
        second = torch.maximum(second, state.get("max_exp_avg_sq", torch.zeros_like(w)))
    denominator = (second / (1 - beta2**step)).sqrt() + group["eps"]
    moved: Tensor = -rate / (1 - beta1**step) * first / denominator
    return moved - rate * decay * w if group["decoupled_weight_decay"] else moved


DIRECT: dict[type, Callable[[Tensor, Tensor, Mapping[str, Any], Mapping[str, Any]], Tensor]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
}


def unwrapped(optimizer: Any) -> Any:
    """The optimizer inside the wrappers of Lightning and Accelerate. Others have a step of their own."""
    wraps = any(kind.__name__ in ("AcceleratedOptimizer", "LightningOptimizer") for kind in type(optimizer).__mro__)
    return getattr(optimizer, "optimizer", optimizer) if wraps else optimizer


def steps_as_its_class(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its `step` is the method of its class; the wrapper of a learning-rate scheduler only counts calls."""
    step = vars(optimizer).get("step", type(optimizer).step)
    if getattr(step, "__globals__", {}).get("__name__") == torch.optim.lr_scheduler.__name__:
        step = step.__wrapped__
    return getattr(step, "__func__", step) is type(optimizer).step


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    own = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    return any((*own, _global_optimizer_pre_hooks, _global_optimizer_post_hooks))


def cast_state(value: Any, dtype: torch.dtype) -> Any:
    """A parameter's state as real numbers of this type; counters stay."""
    return _cast(as_real(value) if isinstance(value, Tensor) else value, dtype)
