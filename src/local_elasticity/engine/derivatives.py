"""Derivatives of predictions along the displacement of a source, J(x′)Δ: two backward passes, or forward mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from local_elasticity.engine.job import Job
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.problem import BoundProblem, Inputs, leaves_of
from local_elasticity.engine.replica import Params
from local_elasticity.engine.tape import far_apart
from local_elasticity.engine.update import FromOptimizer, without_gradient

COTANGENT = 2.0**-20
"""The size of the cotangent that derivatives are read with; small, for backward passes that clip large gradients."""


def displacement_of(job: Job, row: int) -> tuple[Params, Params]:
    """Where changes are counted from, and the displacement from there that the update makes of one source."""
    params, skips = job.bound.params, isinstance(job.update, FromOptimizer)
    _, _, found = job.bound.step_gradient(leaves_of(params), *job.source(row), reached=skips)
    with torch.no_grad():
        moved = job.rule(params, found)
        if not job.removes_drift:
            return params, moved
        drift = without_gradient(job.rule)(params, found)
    start = {name: p + drift[name] if name in drift else p for name, p in params.items()}
    return start, {name: moved[name] - drift[name] for name in moved}


def derivative_along(bound: BoundProblem, params: Params, moved: Params, inputs: Inputs) -> Tensor | None:
    """J(x′)Δ at these parameters, [b, k]; None if torch has no such derivative of the network."""
    found = derivatives_along(bound, params, [moved], inputs)
    return None if found is None else found[0]


def derivatives_along(
    bound: BoundProblem, params: Params, moved: list[Params], inputs: Inputs, *, forward_first: bool = False
) -> Tensor | None:
    """The same for several displacements, [r, b, k]. Forward mode takes less time for few displacements of large
    networks, but fewer functions have it."""
    ways = (_two_backward_passes, _forward_mode)
    for way in reversed(ways) if forward_first else ways:
        try:
            with sdpa_kernel(SDPBackend.MATH):
                found = way(bound, params, moved, inputs)
        except Exception as error:  # any error of torch for functions without such a derivative
            if not may_be_passed_over(error):
                raise
            continue
        if bool(found.isfinite().all()):
            return found
    return None


def _two_backward_passes(bound: BoundProblem, params: Params, moved: list[Params], inputs: Inputs) -> Tensor:
    """vᵀJΔ is linear in v, and its derivative by v is JΔ. A RuntimeError if a part of the network cuts that derivative
    off, as a function of the user's own does whose gradient is not made of torch's functions."""
    leaves = leaves_of(params)
    with torch.enable_grad():
        outputs = bound.predict(leaves, inputs)
        v = (COTANGENT * far_apart(outputs.numel(), outputs.detach())).view_as(outputs).requires_grad_()
        reached = torch.autograd.grad(outputs, list(leaves.values()), v, create_graph=True, allow_unused=True)
        products = {name: g for name, g in zip(leaves, reached, strict=True) if g is not None}
        return torch.stack([_along(products, v, one) for one in moved])


def _along(products: Params, v: Tensor, moved: Params) -> Tensor:
    """The derivative by v of vᵀJΔ, for the vᵀJ that was computed."""
    total = torch.stack([(g * moved[name]).sum() for name, g in products.items() if name in moved]).sum()
    (found,) = torch.autograd.grad(total, v, retain_graph=True)
    parts = v.detach() * found
    if (parts.sum() - total.detach()).abs() > torch.finfo(parts.dtype).eps ** 0.5 * parts.abs().sum():
        raise RuntimeError("a part of the network cuts off the derivative of its gradient")
    return found.detach()


def _forward_mode(bound: BoundProblem, params: Params, moved: list[Params], inputs: Inputs) -> Tensor:
    return torch.stack([_tangent(bound, params, one, inputs) for one in moved])


def _tangent(bound: BoundProblem, params: Params, moved: Params, inputs: Inputs) -> Tensor:
    with torch.no_grad(), _without_onednn(), forward_ad.dual_level():
        tangents = {name: moved.get(name, torch.zeros_like(p)) for name, p in params.items()}
        duals = {name: forward_ad.make_dual(p.detach(), tangents[name].contiguous()) for name, p in params.items()}
        outputs = bound.predict(duals, inputs)
        tangent = forward_ad.unpack_dual(outputs).tangent
        return torch.zeros_like(outputs) if tangent is None else tangent.clone()


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Its recurrent layers have no derivative in forward mode."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
