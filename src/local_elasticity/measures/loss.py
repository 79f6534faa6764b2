"""The measure `loss`: how a step on one example changes the loss of another, with its sign.

    I(x → x′) = ℓ(f(x′; w⁺), y′) − ℓ(f(x′; w), y′),  below 0 where the step helps x′.

It is computed from predictions and their differences d, as `loss_differences.py` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from local_elasticity.engine.guard import untouched
from local_elasticity.engine.job import Job
from local_elasticity.engine.linearized import notes_on_the_limit
from local_elasticity.engine.loss import IGNORED, NAMED, LossFunction, cross_entropy, nll
from local_elasticity.engine.moved_outputs import rounded
from local_elasticity.engine.null_steps import rounding_at_few
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.progress import ProgressOption
from local_elasticity.engine.response import Response, norm_of
from local_elasticity.engine.update import Update
from local_elasticity.measures.loss_differences import STANDARD_DEVIATIONS, Losses, NamedLosses, OwnLosses, total
from local_elasticity.measures.loss_gradients import gradient_products
from local_elasticity.measures.measure import Limits, Measure, Scores
from local_elasticity.shapes import Float

KNOWN_TO = 0.01
"""A pair is resolved where its error is below this share of its value, or of the source's own change of loss."""

NUMBERS_AT_ONCE = 1 << 22
"""Outputs of pairs that are worked on at a time."""

Moments = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def loss_change(response: Response) -> Float[Tensor, "n m"]:
    """The change of every target's loss under a step on every source: below 0 the step helps, above 0 it hurts.

        I(x → x′) = ℓ(f(x′; w⁺), y′) − ℓ(f(x′; w), y′)

    It is exact for the finite step. If the response is to first order (`approximate=True`), so is this:
    −η⟨∇ℓ(x), ∇ℓ(x′)⟩ for plain SGD (TracIn). A pair is NaN where ten standard deviations of its noise exceed 1 % of the
    source's own change of loss, or of its value where that is larger: small influences stay small numbers.

    Args:
        response: from `le.respond`, with targets=(inputs, labels), or with targets that are the sources.

    Returns:
        One number for every source and target, [n, m], in units of the loss.

    Raises:
        ValueError: if the targets have no labels, their labels do not fit the outputs, or the outputs were transformed.

    >>> import torch, local_elasticity as le
    >>> net = torch.nn.Linear(2, 1, bias=False).double()
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> x, y = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).double(), torch.tensor([1.0, -1.0]).double()
    >>> response = le.respond(net, (x, y), loss="half_mse", update=le.SGD(0.1))
    >>> le.loss_change(response)  # a step on either example hurts the other
    tensor([[-0.0950,  0.1050],
            [ 0.1050, -0.1800]], dtype=torch.float64)
    """
    _check_labels(response)
    return _scores(response).values


def _scores(response: Response) -> Scores:
    loss, labels = _loss_and_labels(response)
    losses = NamedLosses(loss) if loss in NAMED else OwnLosses(loss)
    size = _moments(response, losses)
    parts = [size(*part) for part in _strips(response, labels)]
    change, noise = (torch.cat([part[i] for part in parts]) for i in range(2))
    own, own_noise = _at_sources(response, size)
    known = KNOWN_TO / STANDARD_DEVIATIONS
    at_source = (own != 0) & (own_noise <= known * own.abs())
    clear = at_source[:, None] & (noise <= known * torch.maximum(own.abs()[:, None], change.abs()))
    clear &= change.isfinite()
    return Scores(torch.where(clear, change, torch.nan))


@untouched
def _limits(
    problem: Problem,
    sources: Any,
    targets: Any,
    *,
    update: Update,
    memory: int | None = None,
    progress: ProgressOption = None,
) -> Limits | None:
    """The first order of the change for a plain step, −η⟨∇ℓ(x), ∇ℓ(x′)⟩, from one gradient of each example; None for
    other steps. The error of a pair is what rounding changes in either gradient times the length of the other."""
    with problem.bound() as bound:
        job = Job.read(bound, sources, targets, update, memory=memory, check_targets=True)
        if not job.plain:
            return None
        notes = notes_on_the_limit(job)
        found = gradient_products(
            job.bound, sources, targets, job.footprint, rounding=True, memory=memory, progress=progress
        )
        job.check_company(found.targets.predictions)
        forward = rounding_at_few(job, found.targets.predictions).share
    norm, known = found.sources.gradient, KNOWN_TO / STANDARD_DEVIATIONS
    at_source = (norm > 0) & (found.sources.rounding + forward * norm <= known * norm)
    turned = norm[:, None] * found.targets.turned + found.sources.turned[:, None] * found.targets.gradient
    turned = turned + forward * norm[:, None] * found.targets.gradient
    error = (found.sources.scaled[:, None] + found.targets.scaled) * found.products.abs() + turned
    clear = at_source[:, None] & (error <= known * torch.maximum(norm.square()[:, None], found.products.abs()))
    change = -job.update.step_size * found.products
    return Limits(Scores(torch.where(clear & change.isfinite(), change, torch.nan)), notes)


def _at_sources(response: Response, size: Moments) -> tuple[Tensor, Tensor]:
    """The change of each source's own loss, [n], and its noise; the means over a minibatch that was stepped on."""
    assert response.source_labels is not None
    rounding = response.source_noise, response.source_rounding
    change, noise = size(response.source_before, response.source_change, response.source_labels, *rounding)
    return (change.mean(1), noise.square().mean(1).sqrt()) if response.minibatches else (change, noise)


def _loss_and_labels(response: Response) -> tuple[LossFunction, Tensor]:
    if response.loss is None:
        raise ValueError(
            "loss: the outputs of this response were transformed; use the response before as_probabilities()"
        )
    if response.target_labels is None:
        raise ValueError("targets: this measure reads their labels; pass targets=(inputs, labels)")
    return response.loss, response.target_labels


def _check_labels(response: Response) -> None:
    """Labels that a measure does not need are kept as they are, so that they may not fit the loss."""
    loss, labels = _loss_and_labels(response)
    outputs = response.target_before.reshape(-1, *response.output_shape)[: len(labels)]
    if loss in (cross_entropy, nll) and not labels.is_floating_point():
        fits = labels.shape == (len(outputs), *outputs.shape[2:])
        known = labels[labels != IGNORED] if outputs.ndim > 2 else labels
        if not fits or bool(((known < 0) | (known >= outputs.shape[1])).any()):
            raise ValueError(
                f"targets: labels of shape {tuple(labels.shape)} do not name one of {outputs.shape[1]} classes for "
                "each target; give labels 0 … k − 1"
            )
    elif loss in NAMED and labels.numel() != outputs.numel():
        raise ValueError(
            f"targets: labels of shape {tuple(labels.shape)} do not fit outputs of shape {tuple(outputs.shape)}; "
            "this loss reads one number for every output"
        )


def _strips(response: Response, labels: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some rows at a time: predictions before, changes, labels, noise of the changes and rounding of the predictions.
    What rounding turned in the step of a source turns the changes at the targets by the same share."""
    n, m, k = response.target_change.shape
    noise, change = (part.reshape(n, -1).norm(dim=1) for part in (response.source_noise, response.source_change))
    share = torch.where(change > 0, noise / change, 0)
    rows = max(1, NUMBERS_AT_ONCE // (m * k))
    for start in range(0, n, rows):
        part = slice(start, start + rows)
        d = response.target_change[part]
        before = response.target_before[part] if response.target_before.ndim == 3 else response.target_before
        noise = response.noise_scale[part, None, None] * response.target_noise
        noise = torch.hypot(noise, share[part, None, None] * d.norm(dim=2, keepdim=True) / k**0.5)
        each = labels.expand(len(d), *labels.shape)
        yield before.expand_as(d), d, each, noise.expand_as(d), response.target_rounding.expand_as(d)


def _moments(response: Response, losses: Losses) -> Moments:
    """(before, change, labels, noise, rounding), each [..., k], → the change of the loss and the standard deviation of
    its rounding, [...]."""

    def moments(before: Tensor, d: Tensor, labels: Tensor, noise: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor]:
        lead = d.shape[:-1]
        shaped = (-1, *response.output_shape)
        before, d, noise, rounding = (part.reshape(shaped) for part in (before, d, noise, rounding))
        labels = labels.reshape(-1, *labels.shape[len(lead) :])
        rounding = torch.maximum(rounding.nan_to_num(0.0), torch.finfo(before.dtype).eps * before.abs())
        slope = losses.gradient(before, labels)
        turned = losses.gradient(rounded(before, rounding), labels) - slope
        error = _product(turned, d).abs()
        if response.exact:
            change, formula = losses.change(before, d, labels, rounding)
            after = losses.gradient(before + d, labels)
            steepest = torch.maximum(slope.abs(), after.abs())
            error = torch.maximum(error, _product(after - slope, torch.minimum(rounding, d.abs())).abs())
        else:
            change, formula = total(slope * d), torch.zeros((), dtype=d.dtype, device=d.device)
            steepest = slope.abs()
        sigma = torch.hypot(norm_of(_product(steepest, noise).reshape(len(d), -1))[:, 0], formula)
        return change.reshape(lead), (sigma + total(error)).reshape(lead)

    return moments


def _product(slope: Tensor, change: Tensor) -> Tensor:
    """0 where a masked output, which may be infinite, has no slope."""
    return torch.where(slope != 0, slope * change, 0)


LOSS = Measure(
    "loss",
    "how much a step on the source changes the target's loss: below 0 it helps, above 0 it hurts",
    _scores,
    target_labels=True,
    signed=True,
    axis="change of the target's loss",
    limits=_limits,
)
"""The change of the target's loss."""
