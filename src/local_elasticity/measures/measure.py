"""What a measure is: a name, a sentence, and a function that gives a number for every source and target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from local_elasticity.shapes import Float

Needs = Literal["response", "gradients", "activations"]
"""What a measure is computed from: the response to updates, loss gradients, or activations of the network."""


@dataclass(frozen=True)
class Scores:
    """What a measure gives.

    Attributes:
        values: one number for every source and target, [n, m]; set those to NaN that rounding hides.
        own: what the measure divides by: each source's own value, [n].
        floor: the least own value that is resolved, [n].
    """

    values: Float[Tensor, "n m"]
    own: Float[Tensor, " n"] | None = None
    floor: Float[Tensor, " n"] | None = None


@dataclass(frozen=True)
class Limits:
    """Scores in the limit of small steps, and notes on them."""

    scores: Scores
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measure:
    """A measure of how a step on one example moves the prediction at another.

    Every path reads it from here: `le.similarity`, stores, `le.Monitor`, Ray tasks and the report.

    Args:
        name: what it is called in arguments and results.
        words: completes "The number for a pair says …" on the page, such as "how far a target moves".
        compute: response → a tensor [n, m] or `Scores`. If `needs` is not `"response"`, it is called with
            (problem, sources, targets, memory=, progress=), and targets are None if they are the sources.
        needs: `"response"` (one update on each source), `"gradients"` or `"activations"` (no update).
        target_labels: whether it reads the labels of the targets; they are then passed as (inputs, labels).
        symmetric: S(x, x′) = S(x′, x) by definition.
        signed: whether values below zero have a meaning.
        ratio: whether the unit is the source's own change, so that S(x, x) = 1.
        order: how it scales with the change of a prediction: 1 linear, 2 quadratic, 0 not at all.
        axis: a few words for the axis of a figure; without them, the name.
        normalize: (values, own of the sources, own of the targets) → values. Such a measure needs the targets to be
            the sources.
        limits: (problem, sources, targets, update=, memory=, progress=) → `Limits`: the first order of a plain step
            without a response, where that takes less time; None for a step that it does not support.

    >>> import torch, local_elasticity as le
    >>> largest = le.Measure("largest", "the largest change of an output", lambda r: r.target_change.abs().amax(-1))
    >>> S = le.similarity(torch.nn.Linear(2, 3), (torch.eye(2), torch.tensor([0, 1])), loss="cross_entropy",
    ...                   measure=largest)
    >>> S.attrs["measure"], S.shape
    ('largest', (2, 2))
    """

    name: str
    words: str
    compute: Callable[..., Tensor | Scores]
    needs: Needs = "response"
    target_labels: bool = False
    symmetric: bool = False
    signed: bool = False
    ratio: bool = False
    order: int = 1
    axis: str = ""
    normalize: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    limits: Callable[..., Limits | None] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name: expected a word such as 'largest', got {self.name!r}")
        if not callable(self.compute):
            raise TypeError(f"compute: expected a function of a Response, got {self.compute!r}")

    @property
    def takes_steps(self) -> bool:
        """Whether it is computed from updates."""
        return self.needs == "response"

    @property
    def own_name(self) -> str:
        """What results call the sources' own values."""
        return "source_change" if self.normalize is None else "source_kernel"

    def scores(self, *args: Any, **options: Any) -> Scores:
        """Call `compute`, and check what it gives. Rows whose own value is below the floor are NaN.

        Args:
            args: what `compute` takes: a `Response`, or (problem, sources, targets) where no step is needed.
            options: `memory` and `progress`, where no step is needed.

        Returns:
            The checked `Scores`.

        Raises:
            ValueError: if `compute` gives another shape than [sources, targets].
        """
        found = self.compute(*args, **options)
        scores = found if isinstance(found, Scores) else Scores(found)
        values, own, floor = scores.values, scores.own, scores.floor
        if not isinstance(values, Tensor) or values.ndim != 2 or values.layout is not torch.strided:
            shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"measure: {self.name} gives {shape}, not a tensor [sources, targets] with one number for each pair"
            )
        for name, one in (("own", own), ("floor", floor)):
            if one is not None and tuple(one.shape) != (len(values),):
                raise ValueError(f"measure: {self.name} gives {name} of shape {tuple(one.shape)}, not [{len(values)}]")
        if own is not None and floor is not None:
            values = torch.where((own >= floor)[:, None], values, torch.nan)
        return Scores(values, own, floor)
