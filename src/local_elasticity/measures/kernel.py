"""The kernelized similarity S_ker (He & Su eq. 2.3), its normalised form, and the neural tangent kernel."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from local_elasticity.engine.coverage import Coverage, with_coverage
from local_elasticity.engine.guard import untouched
from local_elasticity.engine.inputs import count, read_inputs, take
from local_elasticity.engine.jacobian import (
    Factors,
    explicit_columns,
    from_upper,
    inner,
    inner_trace,
    jacobian_factors,
    own_kernel,
)
from local_elasticity.engine.job import check_network
from local_elasticity.engine.memory import examples_at_once
from local_elasticity.engine.problem import Problem, as_problem
from local_elasticity.engine.progress import Progress, ProgressOption
from local_elasticity.engine.response import Response
from local_elasticity.measures.measure import Measure, Scores
from local_elasticity.measures.relative import resolved
from local_elasticity.shapes import Float


def kernel(response: Response) -> Float[Tensor, "n m"]:
    """The change at the target per unit of step, signed:

        S_ker(x, x′) = −⟨g, f(x′; w⁺) − f(x′; w)⟩ / (η ‖g‖²),   g = ∂ℓ/∂f at the source,

    which is eq. 2.3 for one output and tends to ⟨∇f(x′), ∇f(x)⟩ as η → 0. For several outputs it is not symmetric; the
    symmetric, positive semidefinite kernel is `ntk`. Only steps of plain SGD have this meaning.

    Args:
        response: from `respond` with `SGD`, without weight decay and minibatches.

    Returns:
        S_ker, [n, m]; NaN for pairs that are not resolved.

    Raises:
        ValueError: if the step was not one of plain SGD, was taken on a minibatch, or `as_probabilities` was applied.

    >>> import torch, local_elasticity as le
    >>> problem = le.Problem.of(torch.nn.Linear(2, 1, bias=False).double(), "half_mse")
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    >>> le.kernel(le.respond(problem, (x, torch.full((2,), 9.0))))  # a linear model: x·x′
    tensor([[1.0000, 1.0000],
            [1.0000, 2.0000]], dtype=torch.float64)
    """
    gradient, size = _checked_gradient(response)
    moved = torch.einsum("nk,nmk->nm", gradient, response.target_change)
    return torch.where(resolved(response), -moved / (response.step_size * size)[:, None], torch.nan)


def self_kernel(response: Response) -> Float[Tensor, " n"]:
    """S_ker(x, x) of every source, the diagonal that `normalized` divides by.

    Args:
        response: from `respond` with `SGD`, without weight decay and minibatches.

    Returns:
        S_ker(x, x), [n].

    Raises:
        ValueError: if the step was not one of plain SGD, was taken on a minibatch, or `as_probabilities` was applied.

    >>> import torch, local_elasticity as le
    >>> problem = le.Problem.of(torch.nn.Linear(2, 1, bias=False).double(), "half_mse")
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    >>> le.self_kernel(le.respond(problem, (x, torch.full((2,), 9.0))))
    tensor([1.0000, 2.0000], dtype=torch.float64)
    """
    gradient, size = _checked_gradient(response)
    return -(gradient * response.source_change).sum(-1) / (response.step_size * size)


def normalized(
    K: Float[Tensor, "n m"],
    *,
    source_diagonal: Float[Tensor, " n"] | None = None,
    target_diagonal: Float[Tensor, " m"] | None = None,
) -> Float[Tensor, "n m"]:
    """K(x, x′) / √(K(x, x) K(x′, x′)) (He & Su A.4), NaN where a diagonal entry is not positive.

    A square K whose targets are its sources brings its own diagonal; otherwise give both, for example from
    `self_kernel`. The released code symmetrises first: `normalized(symmetrized(K))`.

    Args:
        K: a kernel, [n, m].
        source_diagonal: K(x, x) of every source, [n]; by default the diagonal of a square K.
        target_diagonal: K(x′, x′) of every target, [m]; by default the diagonal of a square K.

    Returns:
        The normalised kernel, [n, m].

    Raises:
        ValueError: if one diagonal is given without the other, or K is not square and has none.

    >>> import torch
    >>> normalized(torch.tensor([[4.0, 2.0], [2.0, 9.0]]))
    tensor([[1.0000, 0.3333],
            [0.3333, 1.0000]])
    """
    if (source_diagonal is None) != (target_diagonal is None):
        raise ValueError("normalized: give source_diagonal and target_diagonal both, or neither for a square K")
    if source_diagonal is None or target_diagonal is None:
        if K.shape[0] != K.shape[1]:
            raise ValueError(
                f"normalized: a K of shape {tuple(K.shape)} needs source_diagonal= and target_diagonal=, the kernel "
                "of every source and of every target with itself"
            )
        source_diagonal = target_diagonal = K.diagonal()
    rows = torch.where(source_diagonal > 0, source_diagonal, torch.nan).rsqrt()
    columns = torch.where(target_diagonal > 0, target_diagonal, torch.nan).rsqrt()
    return K * rows[:, None] * columns


def symmetrized(S: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """(S + Sᵀ)/2, as Algorithm 1 of He & Su uses it before clustering.

    Args:
        S: a square matrix, [n, n].

    Returns:
        A symmetric matrix, [n, n].

    Raises:
        ValueError: if S is not square.

    >>> import torch
    >>> symmetrized(torch.tensor([[1.0, 0.0], [4.0, 1.0]]))
    tensor([[1., 2.],
            [2., 1.]])
    """
    if S.shape[0] != S.shape[1]:
        raise ValueError(f"symmetrized: expected a square matrix, got shape {tuple(S.shape)}")
    return (S + S.T) / 2


@untouched
def ntk(
    problem: Problem | nn.Module,
    x: Any,
    x2: Any = None,
    *,
    reduce: Literal["trace"] | None = "trace",
    memory: int | None = None,
    progress: ProgressOption = None,
) -> Tensor:
    """The empirical neural tangent kernel Θ(x, x′) = J(x) J(x′)ᵀ, J = ∂f/∂w over the parameters that step.

    Symmetric and positive semidefinite; free of labels, loss and step size.

    Args:
        problem: as for `respond`; a bare model needs no loss here.
        x, x2: inputs; x2 defaults to x.
        reduce: `"trace"` over outputs, [n, m]; None for all of [n, m, k, k].
        memory: bytes for the Jacobians; by default half of what is free.
        progress: as for `respond`, in rows of the kernel.

    Returns:
        The kernel: [n, m], or [n, m, k, k] with `reduce=None`.

    Raises:
        ValueError, TypeError: what is wrong with an argument; the message begins with its name.

    >>> import torch, local_elasticity as le
    >>> le.ntk(le.Problem.of(torch.nn.Linear(2, 1), "mse"), torch.eye(2))  # x·x′ + 1
    tensor([[2., 1.],
            [1., 2.]])
    """
    if reduce not in ("trace", None):
        raise ValueError(f'reduce: expected "trace" or None, got {reduce!r}')
    problem = problem if isinstance(problem, Problem) else as_problem(problem, "mse")
    with problem.bound() as bound:
        left = read_inputs(x, bound.device, bound.dtype, "x")
        right = left if x2 is None else read_inputs(x2, bound.device, bound.dtype, "x2")
        outputs, size, _ = check_network(bound, left, None if x2 is None else right, ("x", "x2"))
        square = x2 is None

        def kernel_with(coverage: Coverage) -> Tensor:
            k, columns = outputs[0].numel(), explicit_columns(bound, coverage)
            rows = examples_at_once(bound, left, size, memory, gradients=k, columns=columns)
            if square and rows >= count(left):
                whole = own_kernel(bound, coverage, left, inner_trace if reduce == "trace" else inner)
                return from_upper([whole if reduce == "trace" else whole.transpose(1, 2)], rows)
            strips = []
            with Progress(count(left), "rows", progress) as bar:
                for i in range(0, count(left), rows):
                    J = jacobian_factors(bound, coverage, take(left, slice(i, i + rows)))[1]
                    strip = [_products(J, J, reduce)] if square else []
                    for j in range(i + rows if square else 0, count(right), rows):
                        other = jacobian_factors(bound, coverage, take(right, slice(j, j + rows)))[1]
                        strip.append(_products(J, other, reduce))
                    strips.append(torch.cat(strip, dim=1))
                    bar.advance(len(strips[-1]))
            return from_upper(strips, rows) if square else torch.cat(strips)

        return with_coverage(bound, left, kernel_with)


def _products(one: Factors, other: Factors, reduce: str | None) -> Tensor:
    return inner_trace(one, other) if reduce == "trace" else inner(one, other).transpose(1, 2)


def _checked_gradient(response: Response) -> tuple[Tensor, Tensor]:
    if not response.update.plain:
        raise ValueError(
            f"kernel: the update is {response.update!r}, but S_ker divides by −η ∂ℓ/∂f, which is the step of plain SGD "
            "alone; use le.SGD(step_size) without weight decay"
        )
    if response.minibatches:
        raise ValueError("kernel: a step on a minibatch has no single ∂ℓ/∂f; leave source_batch_size out")
    if response.loss_gradient is None:
        raise ValueError(
            "kernel: after the softmax there is no ∂ℓ/∂f to divide by; use the response before as_probabilities()"
        )
    return response.loss_gradient, response.loss_gradient.square().sum(-1)


def _with_diagonal(response: Response) -> Scores:
    """S_ker, not yet divided, and its diagonal."""
    K = kernel(response)
    return Scores(K, K.diagonal() if response.targets_are_sources else self_kernel(response))


def _divided(K: Tensor, source_diagonal: Tensor, target_diagonal: Tensor) -> Tensor:
    return normalized(K, source_diagonal=source_diagonal, target_diagonal=target_diagonal)


KERNEL = Measure(
    "kernel",
    "how much a target's prediction changes for each unit of step, with its sign",
    kernel,
    signed=True,
    axis="change at the target per unit of step",
)
"""S_ker (He & Su eq. 2.3)."""

NORMALIZED_KERNEL = Measure(
    "normalized_kernel",
    "how much a target's prediction changes for each unit of step, as a cosine between −1 and 1",
    _with_diagonal,
    signed=True,
    axis="normalized kernel",
    normalize=_divided,
)
"""S_ker over the root of its diagonal (He & Su A.4)."""
