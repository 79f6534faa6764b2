"""Stiffness (Fort et al., cited by Dan et al. §1.5): whether a step on one example lowers the loss of another."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from local_elasticity.engine.guard import untouched
from local_elasticity.engine.inputs import read_sources
from local_elasticity.engine.job import check_labels, check_network
from local_elasticity.engine.loss import LossFunction
from local_elasticity.engine.problem import Problem, as_problem
from local_elasticity.engine.progress import ProgressOption
from local_elasticity.measures.loss_gradients import gradient_products
from local_elasticity.measures.measure import Measure
from local_elasticity.shapes import Bool, Float


@untouched
def stiffness(
    problem: Problem | nn.Module,
    sources: Any,
    targets: Any = None,
    *,
    loss: str | LossFunction | None = None,
    form: Literal["cos", "sign"] = "cos",
    memory: int | None = None,
    progress: ProgressOption = None,
) -> Float[Tensor, "n m"]:
    """The cosine or the sign of ⟨∇ℓ(x), ∇ℓ(x′)⟩ for every pair; their class-wise means are the published stiffness.

    Args:
        problem, loss: as for `respond`.
        sources, targets: (inputs, labels) both, since the loss of the target enters; targets default to sources.
        form: `"cos"` or `"sign"`.
        memory: bytes for the gradients; by default half of what is free.
        progress: as for `respond`, in rows.

    Returns:
        Cosines between −1 and 1, or signs, [n, m]; NaN where the square of a gradient's norm underflows or overflows.

    Raises:
        ValueError, TypeError: what is wrong with an argument; the message begins with its name.

    >>> import torch, local_elasticity as le
    >>> problem = le.Problem.of(torch.nn.Linear(2, 1, bias=False), "half_mse")
    >>> le.stiffness(problem, (torch.eye(2), torch.full((2,), 9.0)))
    tensor([[1., 0.],
            [0., 1.]])
    """
    if form not in ("cos", "sign"):
        raise ValueError(f'form: expected "cos" or "sign", got {form!r}')
    problem = as_problem(problem, loss)
    with problem.bound() as bound:
        left = read_sources(sources, bound.device, bound.dtype)
        right = left if targets is None else read_sources(targets, bound.device, bound.dtype, "targets")
        outputs, size, _ = check_network(bound, left[0], None if targets is None else right[0])
        check_labels(bound, left[1], outputs)
        check_labels(bound, right[1], outputs, "targets")

        found = gradient_products(
            bound, left, None if targets is None else right, size, memory=memory, progress=progress
        )
    known = _has_digits(found.sources.gradient)[:, None] & _has_digits(found.targets.gradient)
    cosine = found.products / found.sources.gradient[:, None] / found.targets.gradient
    return torch.where(known, cosine if form == "cos" else cosine.sign(), torch.nan)


def _has_digits(norms: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Which norms have squares that are far from underflow, and finite."""
    numbers = torch.finfo(norms.dtype)
    return (norms.square() >= numbers.tiny / numbers.eps) & norms.isfinite()


_GRADIENTS: dict[str, Any] = {
    "needs": "gradients",
    "target_labels": True,
    "symmetric": True,
    "signed": True,
    "order": 0,
}

STIFFNESS_COS = Measure(
    "stiffness_cos",
    "whether a step that helps the source helps the target too: the cosine of their loss gradients",
    partial(stiffness, form="cos"),
    axis="cosine of loss gradients",
    **_GRADIENTS,
)
"""The cosine of loss gradients."""

STIFFNESS_SIGN = Measure(
    "stiffness_sign",
    "whether a step that helps the source helps the target (1) or harms it (−1)",
    partial(stiffness, form="sign"),
    axis="sign of the cosine of loss gradients",
    **_GRADIENTS,
)
"""Its sign."""
