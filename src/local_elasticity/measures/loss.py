"""The measure `loss`: how a step on one example changes the loss of another, with its sign.

    I(x → x′) = ℓ(f(x′; w⁺), y′) − ℓ(f(x′; w), y′),  below 0 where the step helps x′.

It is computed from predictions and their differences d. For the named losses nothing cancels:

| loss            | change                                                                                      |
|-----------------|---------------------------------------------------------------------------------------------|
| `mse`           | mean of d (2 (f − y) + d)                                                                   |
| `half_mse`      | Σ d ((f − y) + d/2)                                                                         |
| `cross_entropy` | log1p(Σ_{k≠y} p_k expm1(d_k − d_y)); labels q that are probabilities: `_of_soft_labels`     |
| `bce_logits`    | the same for the two logits (z, 0) and q = (y, 1 − y), mean over outputs                    |
| `bce`           | mean of −y log1p(d/f) − (1 − y) log1p(−d/(1 − f))                                           |

Any other loss is evaluated before and after in float64 and subtracted; its rounding is measured and counts as noise.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from local_elasticity.engine.guard import untouched
from local_elasticity.engine.job import Job
from local_elasticity.engine.linearized import notes_on_the_limit
from local_elasticity.engine.loss import (
    IGNORED,
    NAMED,
    LossFunction,
    bce,
    bce_logits,
    cross_entropy,
    gradient_of,
    half_mse,
)
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.progress import ProgressOption
from local_elasticity.engine.response import Response
from local_elasticity.engine.update import Update
from local_elasticity.measures.loss_gradients import gradient_products, rounded
from local_elasticity.measures.measure import Limits, Measure, Scores
from local_elasticity.measures.relative import expm1_minus
from local_elasticity.shapes import Float

KNOWN_TO = 0.01
"""A pair is resolved where its error is below this share of its value, or of the source's own change of loss."""

STANDARD_DEVIATIONS = 10
"""Those of the noise that count as the error of a pair, as for the other measures."""

NUMBERS_AT_ONCE = 1 << 22
"""Outputs of pairs that are worked on at a time."""

HALF = 0.5
"""Up to this total the logarithm is taken as log1p; beyond it, nothing cancels in a logsumexp."""

PATTERNS = 4
"""How often the rounding of a user's loss is sampled."""


Moments = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


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
    losses = _Named(loss) if loss in NAMED else _Own(loss)
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
    norm, known = found.sources.gradient, KNOWN_TO / STANDARD_DEVIATIONS
    at_source = (norm > 0) & (found.sources.rounding <= known * norm)
    turned = norm[:, None] * found.targets.turned + found.sources.turned[:, None] * found.targets.gradient
    error = (found.sources.scaled[:, None] + found.targets.scaled) * found.products.abs() + turned
    clear = at_source[:, None] & (error <= known * torch.maximum(norm.square()[:, None], found.products.abs()))
    change = -job.update.step_size * found.products
    return Limits(Scores(torch.where(clear & change.isfinite(), change, torch.nan)), notes)


def _at_sources(response: Response, size: Moments) -> tuple[Tensor, Tensor]:
    """The change of each source's own loss, [n], and its noise; the means over a minibatch that was stepped on."""
    assert response.source_labels is not None
    change, noise = size(response.source_before, response.source_change, response.source_labels, response.source_noise)
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
    if loss is cross_entropy and not labels.is_floating_point():
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


def _strips(response: Response, labels: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Some rows at a time: predictions before, changes, labels and noise of their pairs. What rounding turned in the
    step of a source turns the changes at the targets by the same share."""
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
        yield before.expand_as(d), d, each, noise.expand_as(d)


def _moments(response: Response, losses: _Losses) -> Moments:
    """(before, change, labels, noise), each [..., k], → the change of the loss and the standard deviation of its
    rounding, [...]."""

    def moments(before: Tensor, d: Tensor, labels: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        lead = d.shape[:-1]
        shaped = (-1, *response.output_shape)
        before, d, noise = (part.reshape(shaped) for part in (before, d, noise))
        labels = labels.reshape(-1, *labels.shape[len(lead) :])
        slope = losses.gradient(before, labels)
        turned = losses.gradient(rounded(before), labels) - slope
        if response.exact:
            change, rounding = losses.change(before, d, labels)
            steepest = torch.maximum(slope.abs(), losses.gradient(before + d, labels).abs())
        else:
            change, rounding = _total(slope * d), torch.zeros((), dtype=d.dtype, device=d.device)
            steepest = slope.abs()
        sigma = torch.sqrt(_total((steepest * noise).square()) + rounding.square())
        return change.reshape(lead), (sigma + _total((turned * d).abs())).reshape(lead)

    return moments


class _Losses(Protocol):
    """The losses of single examples, [N, …] each."""

    def change(self, before: Tensor, d: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """ℓ(before + d) − ℓ(before), [N], and the standard deviation of what the formula itself rounds."""

    def gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """∂ℓ/∂f, [N, …]."""


class _Named:
    """A loss by name: closed forms without cancellation."""

    def __init__(self, loss: LossFunction) -> None:
        self.loss = loss

    def change(self, before: Tensor, d: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        found = self._change(before, d, labels)
        return found, torch.zeros_like(found)

    def gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if self.loss is not cross_entropy or labels.is_floating_point():
            found = gradient_of(self.loss, outputs, labels)
            assert found is not None
            return found
        p, own, known = _by_place(outputs, labels)
        others = p.masked_fill(own, 0)
        slope = torch.where(own, -others.sum(-1, keepdim=True), others) * _share(known, p)[..., None]
        return slope.movedim(-1, 1).reshape(outputs.shape)

    def _change(self, before: Tensor, d: Tensor, labels: Tensor) -> Tensor:
        if self.loss is cross_entropy:
            return _of_soft_labels(before, d, labels) if labels.is_floating_point() else _of_classes(before, d, labels)
        y = labels.reshape(before.shape).to(before.dtype)
        if self.loss is half_mse:
            return _total(d * (before - y + d / 2))
        if self.loss is bce_logits:
            zero = torch.zeros_like(before)
            slope = (1 - y) * torch.sigmoid(before) - y * torch.sigmoid(-before)
            z, moved, q = (torch.stack(pair, -1) for pair in ((before, zero), (d, zero), (y, 1 - y)))
            return _mean(_of_distributions(z, moved, q, torch.stack([slope, -slope], -1)))
        return _mean(_of_probabilities(before, d, y) if self.loss is bce else d * (2 * (before - y) + d))


class _Own:
    """A loss of the user's: values before and after in float64, subtracted; the rounding of the values is measured."""

    def __init__(self, loss: LossFunction) -> None:
        self.loss = copy.deepcopy(loss).double() if isinstance(loss, nn.Module) else loss
        self.takes_float64: bool | None = None
        self.vectorizes: bool | None = None

    def change(self, before: Tensor, d: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        higher = self._cast(before, labels)
        after = higher + d.to(higher.dtype)
        one, other = self._values(higher, labels), self._values(after, labels)
        eps = torch.finfo(higher.dtype).eps
        null = torch.stack([self._values(rounded(higher, seed), labels) - one for seed in range(PATTERNS)])
        rounding = null.abs().amax(0).clamp_min(null.square().mean().sqrt()) + eps * (one.abs() + other.abs())
        return (other - one).to(before.dtype), rounding.to(before.dtype)

    def gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
        with torch.enable_grad():
            read = self._cast(outputs, labels).detach().requires_grad_()
            (found,) = torch.autograd.grad(self._values(read, labels).sum(), read)
        return found.to(outputs.dtype)

    def _cast(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """In float64, where the loss takes that."""
        if self.takes_float64 is None:
            try:
                self._one(outputs[:1].double(), _like(labels[:1], outputs.double()))
                self.takes_float64 = True
            except Exception as error:  # any error of a loss that was written for one precision
                if not may_be_passed_over(error):
                    raise
                self.takes_float64 = False
        return outputs.double() if self.takes_float64 else outputs

    def _values(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of every example on its own, [N]."""
        labels = _like(labels, outputs)
        if self.vectorizes is None:
            self.vectorizes = self._agrees(outputs, labels)
        if self.vectorizes:
            return torch.func.vmap(lambda one, label: self._one(one[None], label[None]))(outputs, labels)
        return torch.stack([self._one(outputs[i : i + 1], labels[i : i + 1]) for i in range(len(outputs))])

    def _agrees(self, outputs: Tensor, labels: Tensor) -> bool:
        """Whether vmap takes the loss, and gives the values of the first and the last example."""
        ends = [0, len(outputs) - 1]
        try:
            found = torch.func.vmap(lambda one, label: self._one(one[None], label[None]))(outputs[ends], labels[ends])
        except Exception as error:  # any error of vmap for functions that it does not support
            if not may_be_passed_over(error):
                raise
            return False
        expected = torch.stack([self._one(outputs[i : i + 1], labels[i : i + 1]) for i in ends])
        return torch.allclose(found, expected, rtol=1e-6, atol=0, equal_nan=True)

    def _one(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.loss(outputs, labels.clone())


def _of_classes(before: Tensor, d: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of class labels: log1p(Σ_{k≠y} p_k expm1(d_k − d_y)), the mean over places that have a class."""
    p, own, known = _by_place(before, labels)
    moved = _classes_last(d)
    u = moved - moved.masked_fill(~own, 0).sum(-1, keepdim=True)
    total = (p.masked_fill(own, 0) * torch.expm1(u)).sum(-1)
    far = torch.logsumexp(_classes_last(before).log_softmax(-1) + u, -1)
    each = torch.where(total.abs() < HALF, torch.log1p(total), far)
    return (torch.where(known, each, 0) * _share(known, p)).sum(-1)


def _of_soft_labels(before: Tensor, d: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of labels q that are probabilities, the mean over places."""
    z, moved, q = _classes_last(before), _classes_last(d), _classes_last(labels.to(before.dtype))
    weight = q.sum(-1, keepdim=True)
    q = q / torch.where(weight == 0, 1, weight)
    return (weight[..., 0] * _of_distributions(z, moved, q, z.softmax(-1) - q)).mean(-1)


def _of_distributions(z: Tensor, d: Tensor, q: Tensor, slope: Tensor) -> Tensor:
    """log Σ p e^u with u = d − q·d, where slope = p − q: log1p(Σ slope_k u_k + Σ p_k (e^{u_k} − 1 − u_k))."""
    u = d - (q * d).sum(-1, keepdim=True)
    p = z.softmax(-1)
    beyond = torch.where(u.abs() < HALF, expm1_minus(u), torch.expm1(u) - u)
    total = (slope * u).sum(-1) + (p * beyond).sum(-1)
    return torch.where(total.abs() < HALF, torch.log1p(total), torch.logsumexp(z.log_softmax(-1) + u, -1))


def _of_probabilities(f: Tensor, d: Tensor, y: Tensor) -> Tensor:
    """−y Δlog f − (1 − y) Δlog(1 − f), each logarithm bounded at −100 as torch does."""
    after = (f + d).clamp(0, 1)
    found = -(y * _log_change(f, d, after) + (1 - y) * _log_change(1 - f, -d, 1 - after))
    soft = d * (f - y) / (f * (1 - f)) - y * _log1p_minus(d / f) - (1 - y) * _log1p_minus(-d / (1 - f))
    return torch.where((y != 0) & (y != 1) & (d.abs() < 0.1 * f) & (d.abs() < 0.1 * (1 - f)), soft, found)


def _log_change(f: Tensor, d: Tensor, after: Tensor) -> Tensor:
    bounded = (f.log() <= -100) | (after.log() <= -100)
    return torch.where(bounded, after.log().clamp_min(-100) - f.log().clamp_min(-100), torch.log1p(d / f))


def _log1p_minus(r: Tensor) -> Tensor:
    """log(1 + r) − r for |r| ≤ 0.1 by its series −r²/2 + r³/3 − …"""
    r = r.clamp(-0.1, 0.1)
    series = torch.zeros_like(r)
    for n in range(18, 1, -1):
        series = 1 / n - r * series
    return -r * r * series


def _by_place(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities [N, places, k], which of them is the label's, and which places have a label, [N, places]."""
    p, classes = _classes_last(outputs).softmax(-1), labels.reshape(len(outputs), -1).long()
    known = classes != IGNORED if outputs.ndim > 2 else torch.ones_like(classes, dtype=torch.bool)
    return p, classes[..., None] == torch.arange(p.shape[-1], device=p.device), known


def _classes_last(outputs: Tensor) -> Tensor:
    """[N, k, …] as [N, places, k]."""
    return outputs.flatten(2).movedim(1, -1) if outputs.ndim > 2 else outputs[:, None]


def _share(known: Tensor, like: Tensor) -> Tensor:
    """The weight of every place in the mean, [N, places]."""
    return known.to(like) / known.sum(-1, keepdim=True)


def _like(labels: Tensor, outputs: Tensor) -> Tensor:
    return labels.to(outputs.dtype) if labels.is_floating_point() else labels


def _total(each: Tensor) -> Tensor:
    return each.flatten(1).sum(1) if each.ndim > 1 else each


def _mean(each: Tensor) -> Tensor:
    return each.flatten(1).mean(1) if each.ndim > 1 else each


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
