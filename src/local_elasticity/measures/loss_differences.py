"""The change of a loss, example by example, from predictions and their differences d.

For the named losses nothing cancels:

| loss            | change                                                                                      |
|-----------------|---------------------------------------------------------------------------------------------|
| `mse`           | mean of d (2 (f − y) + d)                                                                   |
| `half_mse`      | Σ d ((f − y) + d/2)                                                                         |
| `cross_entropy` | log1p(Σ_{k≠y} p_k expm1(d_k − d_y)); labels q that are probabilities: `_of_soft_labels`     |
| `nll`           | −d_y, where f is not normalized by a log_softmax; else as `cross_entropy`                   |
| `bce_logits`    | the same for the two logits (z, 0) and q = (y, 1 − y), mean over outputs                    |
| `bce`           | mean of −y log1p(d/f) − (1 − y) log1p(−d/(1 − f))                                           |

Any other loss is evaluated before and after in float64 and subtracted; its rounding is measured and counts as noise. So
does the rounding of predictions, which changes the result much where the loss has a kink nearby. Where the step moves
outputs out of [0, 1], the change of a loss that takes probabilities only is not known.
"""

from __future__ import annotations

import copy
from typing import Protocol

import torch
from torch import Tensor, nn

from local_elasticity.engine.loss import (
    IGNORED,
    LossFunction,
    bce,
    bce_logits,
    cross_entropy,
    gradient_of,
    half_mse,
    nll,
)
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.moved_outputs import rounded, takes_probabilities_only
from local_elasticity.measures.relative import expm1_minus

HALF = 0.5
"""Up to this total the logarithm is taken as log1p; beyond it, nothing cancels in a logsumexp."""

PATTERNS = 4
"""How often the rounding of a user's loss is sampled."""

STANDARD_DEVIATIONS = 10
"""Those of the noise that count as the error of a pair, as for the other measures."""

FEW_DIGITS = 1000
"""A sum that is below this many roundings of its parts is known to less than a thousandth."""


class Losses(Protocol):
    """The losses of single examples, [N, …] each."""

    def change(self, before: Tensor, d: Tensor, labels: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor]:
        """ℓ(before + d) − ℓ(before), [N], and the standard deviation of what the formula itself rounds. Of a loss that
        may have kinks, also of what the `rounding` of outputs before the step does to it."""

    def gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """∂ℓ/∂f, [N, …], at the nearest outputs that the loss takes."""


class NamedLosses:
    """A loss by name: closed forms without cancellation."""

    def __init__(self, loss: LossFunction) -> None:
        self.loss = loss

    def change(self, before: Tensor, d: Tensor, labels: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor]:
        found = self._change(before, d, labels)
        if self.loss is not bce:
            return found, torch.zeros_like(found)
        eps = torch.finfo(before.dtype).eps
        below = (1 - eps) * before  # 1 − f has few digits where f is nearly 1
        y, after = labels.reshape(before.shape), before + d
        cancelled = ((y != 0) & (after < FEW_DIGITS * eps * before)) | ((y != 1) & (1 - after < FEW_DIGITS * eps))
        unknown = total(torch.where(cancelled | _is_outside(before, d), torch.inf, torch.zeros_like(after)))
        return found, (self._change(below, d, labels) - found).abs() + unknown

    def gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
        outputs = outputs.clamp(0, 1) if self.loss is bce else outputs
        if self.loss not in (cross_entropy, nll) or labels.is_floating_point():
            found = gradient_of(self.loss, outputs, labels)
            assert found is not None
            return found
        p, own, known = _by_place(outputs, labels)
        others = p.masked_fill(own, 0)
        slope = torch.where(own, -others.sum(-1, keepdim=True), others) if self.loss is cross_entropy else -own.to(p)
        slope = slope * _share(known, p)[..., None]
        return slope.movedim(-1, 1).reshape(outputs.shape)

    def _change(self, before: Tensor, d: Tensor, labels: Tensor) -> Tensor:
        if self.loss is cross_entropy:
            return _of_soft_labels(before, d, labels) if labels.is_floating_point() else _of_classes(before, d, labels)
        if self.loss is nll:
            return _of_log_probabilities(before, d, labels)
        y = labels.reshape(before.shape).to(before.dtype)
        if self.loss is half_mse:
            return total(d * (before - y + d / 2))
        if self.loss is bce_logits:
            zero = torch.zeros_like(before)
            slope = (1 - y) * torch.sigmoid(before) - y * torch.sigmoid(-before)
            z, moved, q = (torch.stack(pair, -1) for pair in ((before, zero), (d, zero), (y, 1 - y)))
            return _mean(_of_distributions(z, moved, q, torch.stack([slope, -slope], -1)))
        return _mean(_of_probabilities(before, d, y) if self.loss is bce else d * (2 * (before - y) + d))


class OwnLosses:
    """A loss of the user's: values before and after in float64, subtracted; the rounding of the values is measured."""

    def __init__(self, loss: LossFunction) -> None:
        self.loss = copy.deepcopy(loss).double() if isinstance(loss, nn.Module) else loss
        self.takes_float64: bool | None = None
        self.vectorizes: bool | None = None
        self.of_probabilities: bool | None = None

    def change(self, before: Tensor, d: Tensor, labels: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor]:
        higher = self._taken(self._cast(before, labels), labels)
        move = d.to(higher.dtype)
        after = self._taken(higher + move, labels)
        one, other = self._values(higher, labels), self._values(after, labels)
        eps = torch.finfo(higher.dtype).eps
        null = self._rounded_values(higher, labels, eps * higher.abs()) - one
        of_sum = torch.maximum(eps * higher.abs(), torch.finfo(d.dtype).eps * move.abs())
        noise = null.abs().amax(0).clamp_min(null.square().mean().sqrt()) + eps * (one.abs() + other.abs())
        noise = noise + (self._rounded_values(after, labels, of_sum) - other).abs().amax(0)
        noise = noise + self._decided_by_rounding(higher, move, labels, other - one, rounding.to(higher.dtype))
        if self.of_probabilities:
            noise = noise + total(torch.where(_is_outside(before, d), torch.inf, torch.zeros_like(before)))
        return (other - one).to(before.dtype), noise.to(before.dtype)

    def _rounded_values(self, outputs: Tensor, labels: Tensor, unit: Tensor) -> Tensor:
        """The losses at outputs that are rounded in several ways."""
        each = [self._taken(rounded(outputs, unit, i), labels) for i in range(PATTERNS)]
        return torch.stack([self._values(one, labels) for one in each])

    def _decided_by_rounding(
        self, before: Tensor, d: Tensor, labels: Tensor, change: Tensor, rounding: Tensor
    ) -> Tensor:
        """How far the change of the loss is from that of rounded outputs. These are as far off as all standard
        deviations that count, so that a kink of the loss within that distance is found."""
        worst = torch.zeros_like(change)
        for pattern in range(min(PATTERNS, max(1, (before[0].numel() - 1).bit_length()))):
            for far in (STANDARD_DEVIATIONS * rounding, -STANDARD_DEVIATIONS * rounding):
                start = rounded(before, far, pattern)
                if self.of_probabilities:  # mirrored, since rounding leaves them between 0 and 1
                    start = torch.where(start > 1, 2 - start, start.abs()).clamp(0, 1)
                end = self._taken(start + d, labels)
                found = self._values(end, labels) - self._values(start, labels)
                worst = torch.maximum(worst, (found - change).abs())
        return worst / STANDARD_DEVIATIONS

    def gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
        with torch.enable_grad():
            read = self._taken(self._cast(outputs, labels).detach(), labels).requires_grad_()
            (found,) = torch.autograd.grad(self._values(read, labels).sum(), read)
        return found.to(outputs.dtype)

    def _taken(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The outputs, or the nearest ones that the loss takes, as the first call finds out with predictions."""
        if self.of_probabilities is None:
            self.of_probabilities = takes_probabilities_only(self.loss, outputs, _like(labels, outputs))
        return outputs.clamp(0, 1) if self.of_probabilities else outputs

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
    summed = (p.masked_fill(own, 0) * torch.expm1(u)).sum(-1)
    far = torch.logsumexp(_classes_last(before).log_softmax(-1) + u, -1)
    each = torch.where(summed.abs() < HALF, torch.log1p(summed), far)
    return (torch.where(known, each, 0) * _share(known, p)).sum(-1)


def _of_log_probabilities(before: Tensor, d: Tensor, labels: Tensor) -> Tensor:
    """−f_y: minus the change of the label's log-probability, the mean over places that have a class."""
    moved = _classes_last(d)
    if labels.is_floating_point():
        return -(_classes_last(labels.to(d.dtype)) * moved).sum(-1).mean(-1)
    p, own, known = _by_place(before, labels)
    return -(moved.masked_fill(~own, 0).sum(-1) * _share(known, p)).sum(-1)


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
    summed = (slope * u).sum(-1) + (p * beyond).sum(-1)
    return torch.where(summed.abs() < HALF, torch.log1p(summed), torch.logsumexp(z.log_softmax(-1) + u, -1))


def _of_probabilities(f: Tensor, d: Tensor, y: Tensor) -> Tensor:
    """−y Δlog f − (1 − y) Δlog(1 − f), each logarithm bounded at −100 as torch does."""
    after = (f + d).clamp(0, 1)
    found = -(y * _log_change(f, d, after) + (1 - y) * _log_change(1 - f, -d, 1 - after))
    soft = d * (f - y) / (f * (1 - f)) - y * _log1p_minus(d / f) - (1 - y) * _log1p_minus(-d / (1 - f))
    return torch.where((y != 0) & (y != 1) & (d.abs() < 0.1 * f) & (d.abs() < 0.1 * (1 - f)), soft, found)


def _is_outside(f: Tensor, d: Tensor) -> Tensor:
    """Which f + d are below 0 or above 1 by more than their rounding."""
    off = FEW_DIGITS * torch.finfo(f.dtype).eps
    return (f + d < -off) | (f + d > 1 + off)


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


def total(each: Tensor) -> Tensor:
    """The sum over everything but the examples."""
    return each.flatten(1).sum(1) if each.ndim > 1 else each


def _mean(each: Tensor) -> Tensor:
    return each.flatten(1).mean(1) if each.ndim > 1 else each
