"""How aligned the features of a class are, how far a step moved them, and how far apart classes lie.

All of these are measures of features: [n, p] with a class for each row, or a `FeatureStream` over a loader. They are
computed from sums over classes in float64, one batch at a time, without an n × n matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, zip_longest
from typing import Literal, get_args

import torch
from torch import Tensor

from local_elasticity.checks import check_choice
from local_elasticity.emergence.checks import check_stream, checked_features, checked_labels
from local_elasticity.emergence.features import Batches, as_stream

Form = Literal["raw", "normalized", "cosine", "centred_cosine"]
NOTHING = 1e-12
"""A row shorter than this, relative to the longest before centring, is taken for zero."""


def alignment(features: Tensor | Batches, labels: Tensor | None = None, *, form: Form = "raw") -> float:
    """A = E⟨F(x), F(x′)⟩/p over pairs of different rows x, x′ of a class (a U-statistic), the mean over classes.

    Forms: `raw`; `normalized`, A over E‖F‖²/p of the class; `cosine`, the mean cosine; `centred_cosine`, the mean
    cosine after the mean of all rows is taken off.

    Classes with one row have no pairs and are left out; where no class has two, that is an error. A zero row has
    cosine 0 with every other, so that constant features have centred cosine 0; the normalised form of features that
    are all zero is NaN. Without labels all rows are one class. NaN is refused.

    >>> F = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    >>> alignment(F, torch.tensor([0, 0, 1, 1])), alignment(F, torch.tensor([0, 0, 1, 1]), form="cosine")
    (1.0, 1.0)
    """
    values = list(alignment_by_class(features, labels, form=form).values())
    return sum(values) / len(values)


def alignment_by_class(
    features: Tensor | Batches, labels: Tensor | None = None, *, form: Form = "raw"
) -> dict[int, float]:
    """The alignment of each class that has at least two rows.

    >>> F = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 3.0], [5.0, 5.0]])
    >>> alignment_by_class(F, torch.tensor([0, 0, 1, 1, 2]))
    {0: 0.5, 1: 1.5}
    """
    sums = class_sums(features, labels, form)
    found = {name: one.alignment(form) for name, one in sorted(sums.items()) if one.count > 1}
    if not found:
        raise ValueError("labels: no class has two rows, so there are no pairs to align")
    return found


def separability(features: Tensor | Batches, labels: Tensor | None = None, *, form: Form = "raw") -> float:
    """−E⟨F(x), F(x′)⟩/p over x of one class and x′ of another, the mean over pairs of classes; forms as `alignment`
    (`normalized` is over the mean of the two classes' E‖F‖²/p). One class alone is an error.

    >>> separability(torch.tensor([[1.0, 0.0], [-3.0, 0.0]]), torch.tensor([0, 1]))
    1.5
    """
    sums = list(class_sums(features, labels, form).values())
    if len(sums) < 2:
        raise ValueError("labels: separability needs at least two classes")
    values = [-one.between(other, form) for one, other in combinations(sums, 2)]
    return sum(values) / len(values)


def elasticity(before: Tensor | Batches, after: Tensor | Batches) -> float:
    """LE = E‖F − F₀‖²/p: how far the features moved, before and after row by row; tensors [n, p] or two streams.

    >>> elasticity(torch.zeros(3, 2), torch.ones(3, 2))
    1.0
    """
    moved, count, width = 0.0, 0, 0
    for first, second in zip_longest(_batches(before, None, "before"), _batches(after, None, "after")):
        if first is None or second is None or first[0].shape != second[0].shape:
            raise ValueError("after: it must hold the same rows and features as before")
        if not torch.equal(first[1], second[1]):
            raise ValueError("after: its labels are not those of before; the loader must not shuffle")
        moved += float((second[0] - first[0]).square().sum())
        count, width = count + len(first[0]), first[0].shape[1]
    return moved / (count * width)


@dataclass
class ClassSums:
    """Σ F, Σ ‖F‖² and the number of rows of one class."""

    count: int = 0
    squares: float = 0.0
    total: Tensor = field(default_factory=lambda: torch.zeros(()))

    def add(self, rows: Tensor) -> None:
        self.count += len(rows)
        self.squares += float(rows.square().sum())
        self.total = self.total + rows.sum(0)

    def alignment(self, form: Form) -> float:
        pairs = (float(self.total @ self.total) - self.squares) / (self.count * (self.count - 1))
        if form == "normalized":
            return pairs / (self.squares / self.count) if self.squares else float("nan")
        return pairs / len(self.total) if form == "raw" else pairs

    def between(self, other: ClassSums, form: Form) -> float:
        pairs = float(self.total @ other.total) / (self.count * other.count)
        if form == "normalized":
            size = (self.squares / self.count + other.squares / other.count) / 2
            return pairs / size if size else float("nan")
        return pairs / len(self.total) if form == "raw" else pairs


def class_sums(features: Tensor | Batches, labels: Tensor | None, form: Form) -> dict[int, ClassSums]:
    """One pass over the rows, two where they are centred first."""
    check_choice("form", form, get_args(Form))
    centre = _mean_row(features, labels) if form == "centred_cosine" else None
    sums: dict[int, ClassSums] = {}
    for rows, classes in _batches(features, labels, "features"):
        made = _unit_rows(rows, centre) if "cosine" in form else rows
        for name in classes.unique().tolist():
            sums.setdefault(name, ClassSums()).add(made[classes == name])
    return sums


def _mean_row(features: Tensor | Batches, labels: Tensor | None) -> Tensor:
    everything = ClassSums()
    for rows, _ in _batches(features, labels, "features"):
        everything.add(rows)
    return everything.total / everything.count


def _unit_rows(rows: Tensor, centre: Tensor | None) -> Tensor:
    longest = rows.norm(dim=1).max()
    moved = rows if centre is None else rows - centre
    norm = moved.norm(dim=1, keepdim=True)
    return torch.where(norm > NOTHING * longest, moved / norm.clamp_min(torch.finfo(rows.dtype).tiny), 0)


def _batches(features: Tensor | Batches, labels: Tensor | None, name: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows in float64 and their classes, whichever way they came."""
    if isinstance(features, Tensor):
        rows = checked_features(name, features)
        yield rows, checked_labels(torch.zeros(len(rows)) if labels is None else labels, len(rows)).to(rows.device)
        return
    check_stream(name, features, labels)
    for batch, classes in as_stream(features):
        rows = checked_features(name, batch)
        yield rows, checked_labels(classes, len(rows)).to(rows.device)
