"""Gradients of single examples for parameters that the tape does not support: by vmap, or one by one if that fails."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap
from torch.utils._pytree import tree_map

from local_elasticity.engine.guard import vectorized
from local_elasticity.engine.inputs import count, take
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.problem import BoundProblem, Inputs, leaves_of, reached_gradients
from local_elasticity.engine.replica import Params
from local_elasticity.engine.uses import Matrices
from local_elasticity.shapes import Float


def left_over_jacobian(bound: BoundProblem, names: tuple[str, ...], inputs: Inputs) -> Matrices:
    """name → [b, k, p_name] for some parameters, by vmap, or one by one for modules that vmap cannot take."""
    some = {name: bound.params[name] for name in names}
    zeros = tree_map(torch.zeros_like, some)  # of those that the forward pass reads under no_grad

    def predict(params: Params, one: Inputs) -> Tensor:
        return bound.predict({**bound.params, **params}, take(one, None))[0]

    def by_vmap(one: Inputs) -> Params:
        return jacrev(predict)(some, one)

    def plainly(one: Inputs) -> Params:
        leaves = leaves_of(some)
        rows = [
            zeros | reached_gradients(output, leaves, torch.ones_like(output), retain=True)
            for output in predict(leaves, one)
        ]
        return {name: torch.stack([row[name] for row in rows]) for name in leaves}

    parts = _each(by_vmap, plainly, inputs)
    return {name: part.reshape(*part.shape[:2], -1) for name, part in parts.items()}


def left_over_gradients(
    bound: BoundProblem, names: tuple[str, ...], inputs: Inputs, cotangents: Float[Tensor, "b k"]
) -> Matrices:
    """name → [b, 1, p_name] along one cotangent for each example."""
    some = {name: bound.params[name] for name in names}
    zeros = tree_map(torch.zeros_like, some)  # of those that the forward pass reads under no_grad

    def along(params: Params, one: Inputs) -> Tensor:
        predictions = bound.predict({**bound.params, **params}, take(one[0], None))
        return torch.dot(predictions[0], one[1])

    def by_vmap(one: Inputs) -> Params:
        return grad(along)(some, one)

    def plainly(one: Inputs) -> Params:
        leaves = leaves_of(some)
        with torch.enable_grad():
            value = along(leaves, one)
        return zeros | reached_gradients(value, leaves, torch.ones_like(value))

    parts = _each(by_vmap, plainly, (inputs, cotangents))
    return {name: part.reshape(len(part), 1, -1) for name, part in parts.items()}


def _each(function: Callable[[Inputs], Params], plainly: Callable[[Inputs], Params], inputs: Inputs) -> Params:
    """For all examples by vmap, where that agrees with plain autograd on the last one; else one by one."""
    last = count(inputs) - 1
    one = plainly(take(inputs, last))
    try:
        with torch.no_grad(), vectorized():
            found = vmap(function)(inputs)
    except Exception as error:  # whatever a forward pass raises that does not support vmap
        if not may_be_passed_over(error):
            raise
    else:
        if all(_agrees(found[name][last], part) for name, part in one.items()):
            return found
    parts = [*(plainly(take(inputs, i)) for i in range(last)), one]
    return {name: torch.stack([part[name] for part in parts]) for name in one}


def _agrees(found: Tensor, expected: Tensor) -> bool:
    """Whether they are the same up to rounding; NaN agrees with NaN."""
    same = (found.nan_to_num() - expected.nan_to_num()).norm() <= torch.finfo(found.dtype).eps ** 0.5 * expected.norm()
    return found.shape == expected.shape and (bool(same) or not expected.isfinite().all())
