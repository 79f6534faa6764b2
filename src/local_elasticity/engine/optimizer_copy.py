"""A copy of a live optimizer that takes steps of its own, in float64 where the optimizer's code allows it.

The displacement is p_after − p. In float32 that difference has no more digits than p, and a step that is small against
its weight is rounded to a few units in the last place. In float64 the rounding is below that of any float32 number.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from local_elasticity.engine.copying import without_finalizer
from local_elasticity.engine.guard import interruption
from local_elasticity.engine.problem import as_real
from local_elasticity.engine.replica import Params

Places = dict[str, tuple[int, int]]
"""Parameter name → its group in the optimizer, and its place in that group."""

PRECISIONS = (torch.float64, torch.float32)
"""In which steps are tried, the finest first."""

REFUSALS = (TypeError, RuntimeError, ValueError, AssertionError)
"""What the code of an optimizer raises where it was not made for a precision."""

TRIED = 1 / 3
"""Every entry of the gradient that a step is tried with; no binary number, so that steps show their last digits."""


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
        compute in float32.
        """
        for dtype in PRECISIONS:
            tried = cls(_copied(optimizer), places, dtype, 0.0)
            try:
                after = tried._after_a_trial()
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
    """An optimizer of its own with parameters of its own; `copy.deepcopy` loses what a class adds to its instances."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    memo = {id(p): p.detach().clone().requires_grad_(p.requires_grad) for p in held}
    for p in held:
        memo[id(p)].__dict__.update(vars(p))
    made: torch.optim.Optimizer = object.__new__(without_finalizer(type(optimizer)))
    for key, value in vars(optimizer).items():
        if key == "state":
            made.state = defaultdict(dict, {memo[id(p)]: copy.deepcopy(of, memo) for p, of in value.items()})
        elif key != "step":  # a scheduler's wrapper, which would step the user's
            setattr(made, key, copy.deepcopy(value, memo))
    for group in made.param_groups:
        _keep_precision(made, group)
    return made


def _keep_precision(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    """Write down the ε that Adafactor would read from the precision of its parameters, so that it stays the same."""
    if isinstance(optimizer, torch.optim.Adafactor) and group["params"] and group["eps"][0] is None:
        group["eps"] = (torch.finfo(group["params"][0].dtype).eps, *group["eps"][1:])


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """State in the precision of its parameter; counters stay."""
    floating = isinstance(value, Tensor) and value.ndim and (value.is_floating_point() or value.is_complex())
    return value.to(dtype) if floating else value
