"""The response: what one update on each source did to every target's prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from html import escape
from typing import Any

import torch
from torch import Tensor

from local_elasticity.engine.loss import Kind, LossFunction, has_classes_first, no_distribution
from local_elasticity.engine.update import Update
from local_elasticity.shapes import Float

OF_SOURCES = (
    *("source_before", "source_change", "source_noise", "source_rounding", "source_labels"),
    *("loss_gradient", "step_size", "noise_scale"),
)
"""The fields of a response that have a row for every source, besides `target_change`."""

HALF = 0.5
"""Up to this size the logarithm of a sum of probabilities is taken as log1p; beyond it, nothing cancels."""


@dataclass(frozen=True)
class Response:
    """One update on each of n sources, read at m targets with k outputs each. Measures are functions of it.

    Differences are stored, not predictions after the step, so that nothing cancels later. Where one step was taken on
    each minibatch of B sources, a row is a batch and source arrays have the shape [n, B, k] instead of [n, k].

    Attributes:
        source_before: f(x; w), [n, k].
        target_before: f(x′; w), [m, k]; along a walk, where w moves from row to row, [n, m, k].
        source_change: f(x; w⁺) − f(x; w), [n, k].
        target_change: f(x′; w⁺) − f(x′; w), [n, m, k]; w⁺ is that of the row's source.
        loss_gradient: ∂ℓ/∂f at each source, [n, k]; None if the outputs were transformed so that there is none.
        step_size: η of each row, [n].
        source_noise, target_noise: standard deviation of the rounding error in a change, [n, k] and [m, k].
        noise_scale: the share of `target_noise` that row i carries, [n]: 1 for differences taken in the model's
            precision, less for rows computed in a higher one, 0 if nothing was subtracted.
        source_rounding, target_rounding: how far rounding moves a prediction before the step, [n, k] and [m, k].
        kind: what the k outputs are; `update`: the rule; `engine`: what computed it; `policy`: how the model was run.
        targets_are_sources: whether column j is the example of row j.
        notes: decisions that were made during the measurement, in words.
        source_labels, target_labels: the labels of the sources, and of the targets where they were given.
        loss: ℓ(outputs, labels); None if the outputs were transformed. `output_shape` is the shape of one example's
            outputs, which are flat here. `exact` is False where changes are to first order in the step.
        nonlinearity: how far changes are from those of small steps, ‖R − JΔ‖ / ‖JΔ‖, in the median of a few sources;
            NaN where that is not known.
    """

    source_before: Float[Tensor, "n *batch k"]
    target_before: Float[Tensor, "... m k"]
    source_change: Float[Tensor, "n *batch k"]
    target_change: Float[Tensor, "n m k"]
    loss_gradient: Float[Tensor, "n *batch k"] | None
    step_size: Float[Tensor, " n"]
    source_noise: Float[Tensor, "n *batch k"]
    target_noise: Float[Tensor, "... m k"]
    noise_scale: Float[Tensor, " n"]
    source_rounding: Float[Tensor, "n *batch k"]
    target_rounding: Float[Tensor, "m k"]
    kind: Kind
    update: Update
    engine: str
    policy: str
    targets_are_sources: bool
    notes: tuple[str, ...] = ()
    source_labels: Tensor | None = None
    target_labels: Tensor | None = None
    loss: LossFunction | None = None
    output_shape: tuple[int, ...] = ()
    exact: bool = True
    nonlinearity: float = float("nan")

    def __repr__(self) -> str:
        """Its size, what made it and what was decided, without the numbers of its tensors."""
        n, m, k = self.target_change.shape
        notes = "".join(f"\n  {note}" for note in self.notes)
        return f"Response({n} sources × {m} targets × {k} {self.kind}; {self.update}; engine {self.engine}){notes}"

    def _repr_html_(self) -> str:
        head, *notes = repr(self).split("\n")
        return f"<b>{escape(head)}</b>" + "".join(f"<br><small>{escape(note)}</small>" for note in notes)

    @property
    def source_after(self) -> Float[Tensor, "n *batch k"]:
        return self.source_before + self.source_change

    @property
    def target_after(self) -> Float[Tensor, "n m k"]:
        return self.target_before + self.target_change

    @property
    def minibatches(self) -> bool:
        return self.source_before.ndim == 3

    @property
    def classes_by_place(self) -> int | None:
        """How many classes every place has, where the outputs are logits [k, …] of many places; None elsewhere."""
        known = self.kind == "logits_by_place" and has_classes_first(self.loss)
        return self.output_shape[0] if known else None

    def double(self) -> Response:
        """The same numbers in float64.

        Returns:
            A new response.

        >>> import torch, local_elasticity as le
        >>> response = le.respond(torch.nn.Linear(2, 1), (torch.eye(2), torch.ones(2)), loss="mse")
        >>> response.double().target_change.dtype
        torch.float64
        """
        each: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        floats = {name: part for name, part in each.items() if isinstance(part, Tensor) and part.is_floating_point()}
        return replace(self, **{name: part.double() for name, part in floats.items()})  # type: ignore[arg-type]

    def as_probabilities(self) -> Response:
        """The same response after the softmax (or the sigmoid of binary logits), without subtracting. Logits of many
        places, such as pixels, have a softmax at each.

        With L = log Σ_j p_j e^{d_j}, the change of a probability is p⁺ − p = p · expm1(d − L).

        Returns:
            A new response, or this one where its outputs are probabilities.

        Raises:
            ValueError: if the outputs are no distribution.

        >>> import torch, local_elasticity as le
        >>> net = torch.nn.Linear(2, 3).double()
        >>> x, y = torch.eye(2).double(), torch.tensor([0, 1])
        >>> response = le.respond(le.Problem.of(net, "cross_entropy"), (x, y), update=le.SGD(0.1))
        >>> probabilities = response.as_probabilities()
        >>> torch.allclose(probabilities.target_after, response.target_after.softmax(-1))
        True
        """
        if self.kind == "binary_logits":
            return self._sigmoid()
        if self.kind == "logits" or self.classes_by_place is not None:
            return self._softmax()
        if self.kind in ("probabilities", "binary_probabilities"):
            return self
        raise ValueError(f"as_probabilities: {no_distribution(self.kind)}")

    def _softmax(self) -> Response:
        classes = self.classes_by_place

        def applied(function: Callable[..., Tensor], *parts: Tensor) -> Tensor:
            """Place by place, where there are several."""
            if classes is None:
                return function(*parts)
            return function(*(by_place(part, classes) for part in parts)).transpose(-1, -2).flatten(-2)

        source, target = (applied(_softmax_of, part) for part in (self.source_before, self.target_before))
        return replace(
            self,
            source_before=source,
            target_before=target,
            source_change=applied(softmax_change, self.source_before, self.source_change),
            target_change=applied(softmax_change, self.target_before, self.target_change),
            loss_gradient=None,
            loss=None,
            source_noise=applied(_softmax_noise, source, self.source_noise),
            target_noise=applied(_softmax_noise, target, self.target_noise),
            kind="probabilities",
        )

    def _sigmoid(self) -> Response:
        slope, slope_at_targets = _sigmoid_slope(self.source_before), _sigmoid_slope(self.target_before)
        return replace(
            self,
            source_before=self.source_before.sigmoid(),
            target_before=self.target_before.sigmoid(),
            source_change=sigmoid_change(self.source_before, self.source_change),
            target_change=sigmoid_change(self.target_before, self.target_change),
            loss_gradient=None if self.loss_gradient is None else self.loss_gradient / slope,
            loss=None,
            source_noise=slope * self.source_noise,
            target_noise=slope_at_targets * self.target_noise,
            kind="binary_probabilities",
        )


def by_place(outputs: Tensor, classes: int) -> Tensor:
    """Flat outputs [..., classes · places] as [..., places, classes]."""
    return outputs.unflatten(-1, (classes, -1)).transpose(-1, -2)


def _softmax_of(z: Tensor) -> Tensor:
    return z.softmax(-1)


def repeated(response: Response, n: int, m: int) -> Response:
    """A response with n sources and m targets, which takes its own in turn; each row's batch is one example."""
    device = response.step_size.device
    rows = torch.arange(n, device=device) % len(response.step_size)
    columns = torch.arange(m, device=device) % response.target_change.shape[1]
    of_targets = ("target_before", "target_noise", "target_rounding", "target_labels")
    places = {**dict.fromkeys(OF_SOURCES, rows), **dict.fromkeys(of_targets, columns)}
    parts = {name: getattr(response, name)[at] for name, at in places.items() if getattr(response, name) is not None}
    return replace(response, target_change=response.target_change[rows][:, columns], **parts)


def softmax_change(z: Tensor, d: Tensor) -> Tensor:
    """p · expm1(d − L) with p = softmax(z) and L = log Σ p e^d. What the likeliest class moves by is taken off d first:
    then L is small where the network stays sure, and log1p of a sum that has its digits.
    """
    d = d.expand_as(z + d)
    log_p = z.log_softmax(-1)
    d = d - d.gather(-1, log_p.argmax(-1, keepdim=True).expand(*d.shape[:-1], 1))
    far = (log_p + d).logsumexp(-1, keepdim=True)
    near = torch.log1p(_grown(log_p, d).sum(-1, keepdim=True))
    return _grown(log_p, d - torch.where(far.abs() < HALF, near, far))


def _grown(log_p: Tensor, u: Tensor) -> Tensor:
    """p · expm1(u), where e^u may be too large for a number and p too small for one."""
    p = log_p.exp()
    return torch.where(u < 1, p * torch.expm1(u.clamp_max(1)), torch.exp(log_p + u) - p)


def _softmax_noise(p: Tensor, noise: Tensor) -> Tensor:
    """First order, errors of different outputs independent: σ² = p_i² ((1 − p_i)² σ_i² + Σ_{j≠i} p_j² σ_j²). For the
    likeliest class, 1 − p_i is the sum of the others, which keeps its digits where p_i is nearly 1."""
    likeliest = torch.zeros_like(p, dtype=torch.bool).scatter(-1, p.argmax(-1, keepdim=True), True)
    rest = p.masked_fill(likeliest, 0)
    own = torch.where(likeliest, rest.sum(-1, keepdim=True), 1 - p) * noise
    of_rest, of_likeliest = norm_of(rest * noise), norm_of((p - rest) * noise)
    share = rest * noise / of_rest.clamp_min(torch.finfo(p.dtype).tiny)
    of_rest = of_rest * (1 - share.square()).clamp_min(0).sqrt()
    return p * torch.hypot(own, torch.where(likeliest, of_rest, torch.hypot(of_rest, of_likeliest)))


def norm_of(parts: Float[Tensor, "*b k"]) -> Float[Tensor, "*b 1"]:
    """‖parts‖₂ along the last axis, which is kept, without squares that underflow."""
    largest = parts.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(parts.dtype).tiny)
    return largest * torch.linalg.vector_norm(parts / largest, dim=-1, keepdim=True)


def _sigmoid_slope(z: Tensor) -> Tensor:
    """The derivative of the sigmoid, which keeps its digits where the sigmoid is nearly 1."""
    return torch.sigmoid(z) * torch.sigmoid(-z)


def sigmoid_change(z: Tensor, d: Tensor) -> Tensor:
    """sigmoid(z + d) − sigmoid(z) = ± sigmoid(h) · sigmoid(−l) · (1 − e^(l − h)), where h is the higher of z and z + d
    and l the lower; the sign is that of d."""
    after = z + d
    high, low = torch.maximum(z, after), torch.minimum(z, after)
    return -d.sign() * torch.sigmoid(high) * torch.sigmoid(-low) * torch.expm1(-d.abs())
