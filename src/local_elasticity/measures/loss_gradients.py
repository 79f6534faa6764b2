"""Inner products of loss gradients, ⟨∇ℓ(x), ∇ℓ(x′)⟩: what stiffness and a change of loss to first order are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from local_elasticity.engine.coverage import Coverage, with_coverage
from local_elasticity.engine.inputs import count, take
from local_elasticity.engine.jacobian import Factors, explicit_columns, factors_along, inner_trace
from local_elasticity.engine.memory import Footprint, examples_at_once
from local_elasticity.engine.moved_outputs import last_places, rounded, takes_probabilities_only
from local_elasticity.engine.problem import BoundProblem, Inputs
from local_elasticity.engine.progress import Progress, ProgressOption
from local_elasticity.shapes import Float

Examples = tuple[Inputs, Tensor]


@dataclass(frozen=True)
class GradientNorms:
    """‖∇ℓ‖ of some examples, what rounding of their predictions does to ∇ℓ, and the predictions. Rounding scales ∇ℓ by
    a share of it, and turns it by adding a vector of some length; both are 0 where they were not asked for."""

    gradient: Float[Tensor, " b"]
    scaled: Float[Tensor, " b"]
    turned: Float[Tensor, " b"]
    predictions: Float[Tensor, "b k"]

    @property
    def rounding(self) -> Float[Tensor, " b"]:
        """How far rounding moves ∇ℓ."""
        return self.scaled * self.gradient + self.turned

    @classmethod
    def of_parts(cls, parts: Sequence[GradientNorms]) -> GradientNorms:
        """Those of several parts together."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))


@dataclass(frozen=True)
class GradientProducts:
    """⟨∇ℓ(x), ∇ℓ(x′)⟩ of all pairs, and the norms of the gradients on either side."""

    products: Float[Tensor, "n m"]
    sources: GradientNorms
    targets: GradientNorms


def gradient_products(
    bound: BoundProblem,
    sources: Examples,
    targets: Examples | None,
    size: Footprint,
    *,
    rounding: bool = False,
    memory: int | None = None,
    progress: ProgressOption = None,
) -> GradientProducts:
    """From one backward pass over each example, and with `rounding` from two. Targets that are None are the sources.
    Where memory holds the gradients of all targets, they are computed once."""

    def products_with(coverage: Coverage) -> GradientProducts:
        columns = explicit_columns(bound, coverage)
        at_once = examples_at_once(bound, sources[0], size, memory, gradients=1, columns=columns)
        right = sources if targets is None else targets
        n, m = count(sources[0]), count(right[0])

        def block(examples: Examples, start: int) -> tuple[Factors, GradientNorms]:
            return _block(bound, coverage, examples, slice(start, start + at_once), rounding=rounding)

        kept = block(right, 0) if targets is not None and m <= at_once else None
        strips: list[Tensor] = []
        left: list[GradientNorms] = []
        others: list[GradientNorms] = []
        with Progress(n, "rows", progress) as bar:
            for i in range(0, n, at_once):
                gradients, norms = block(sources, i)
                left.append(norms)
                strip = []
                for j in range(0, m, at_once):
                    met = (gradients, norms) if targets is None and i == j else kept or block(right, j)
                    strip.append(inner_trace(gradients, met[0]))
                    others += [met[1]] if i == 0 else []
                strips.append(torch.cat(strip, dim=1))
                bar.advance(len(strips[-1]))
        return GradientProducts(torch.cat(strips), GradientNorms.of_parts(left), GradientNorms.of_parts(others))

    return with_coverage(bound, sources[0], products_with)


def _block(
    bound: BoundProblem, coverage: Coverage, examples: Examples, rows: slice, *, rounding: bool
) -> tuple[Factors, GradientNorms]:
    """The loss gradients of some examples, and their norms."""
    inputs, labels = (take(part, rows) for part in examples)
    tape = coverage.record(bound, inputs)
    outputs = tape.outputs.detach()
    slope = bound.loss_gradients(outputs, labels[:, None])
    found = factors_along(bound, coverage, tape, inputs, slope)
    scaled = turned = torch.zeros_like(norm := found.squares()[:, 0].sqrt())
    if rounding:
        other = rounded(outputs, last_places(outputs))
        if takes_probabilities_only(bound.loss_function, outputs, labels):
            other = other.clamp(0, 1)
        moved = bound.loss_gradients(other, labels[:, None]) - slope
        along = (moved * slope).sum(2, keepdim=True) / slope.square().sum(2, keepdim=True)
        along = along.nan_to_num(0.0, 0.0, 0.0)
        scaled = along[:, 0, 0].abs()
        turned = factors_along(bound, coverage, tape, inputs, moved - along * slope).squares()[:, 0].sqrt()
    return found, GradientNorms(norm, scaled, turned, tape.predictions.detach())
