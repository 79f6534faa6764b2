"""A forecast as the page shows it: who is at risk, and what came true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from local_elasticity.report.examples import is_picture, kept_examples
from local_elasticity.report.run import shown
from local_elasticity.words import number, percent

AT_RISK = 12
"""Examples that are listed, the largest risk first."""

DOTS = 2000
"""Examples that are drawn; of more, so many at random."""


@dataclass(frozen=True)
class Foreseen:
    """What `le.forecast` found, and its check where there is one.

    Attributes:
        sentences: what the forecast says.
        came_true: what its check says; empty where there is none.
        at_risk: positions of the old examples with the largest risk.
        labels: the class of each old example, where it is known.
        margins: before and as forecast, [m, 2].
        right: whether each old example was right before, [m].
        calibration: a row for each fifth of the examples by risk: examples, share forecast to be lost, share lost.
        pictures: what is kept of each old example.
        notes: what could not be shown.
        sizes_known: whether it is forecast how many are lost.
        names: what each old example is called; by default its position.
    """

    name: str
    sentences: Sequence[str]
    came_true: Sequence[str]
    at_risk: Sequence[int]
    labels: Sequence[str] | None
    margins: np.ndarray
    right: np.ndarray
    calibration: Sequence[tuple[str, str, str]] = ()
    pictures: Sequence[str] | None = None
    notes: Sequence[str] = field(default_factory=tuple)
    sizes_known: bool = True
    names: Sequence[str] | None = None

    def with_examples(self, examples: Any) -> Foreseen:
        """The same with a picture, text or vector for each old example, where they fit."""
        given = examples[0] if isinstance(examples, tuple) else examples
        try:
            return replace(self, pictures=kept_examples(given, len(self.margins)).tolist())
        except ValueError as error:
            return replace(self, notes=(*self.notes, f"The given examples are not shown here: {error}."))

    def without_examples(self) -> Foreseen:
        return replace(self, pictures=None)

    @property
    def content(self) -> str:
        """What a page with this forecast contains of the user's data."""
        shown = 0 if self.pictures is None else sum(bool(self.pictures[place]) for place in self.at_risk)
        return f"{shown or 'no'} examples, margins of {len(self.margins):,} examples"

    @property
    def headline(self) -> str:
        """What the forecast says, in one sentence."""
        known = self.right & np.isfinite(self.margins).all(1)
        lost, count = int((self.margins[known, 1] <= 0).sum()), int(known.sum())
        if not count:
            return "The model classifies no old example correctly, so none can be lost."
        if not self.sizes_known:
            return f"Which of {count:,} correct examples are at risk is forecast, but not how many are lost."
        return f"{lost:,} of {count:,} correct examples ({percent(lost / count)}) are forecast to be lost."

    @property
    def evidence(self) -> str:
        """Which class loses most, and what came true."""
        lost = self.right & (self.margins[:, 1] <= 0) & self.sizes_known
        said = []
        if self.labels is not None and lost.any():
            label, count = Counter(np.array(self.labels)[lost].tolist()).most_common(1)[0]
            said.append(f"{count:,} of these {int(lost.sum()):,} have the label {label}, the most of any label.")
        if self.came_true:
            said.append(f"The real fine-tune: {self.came_true[0]}.")
        return " ".join(said)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The examples at risk as the page prints them."""
        found = []
        for place in self.at_risk:
            kept = self.pictures[place] if self.pictures is not None else ""
            before, after = self.margins[place]
            found.append(
                {
                    "name": f"#{place}" if self.names is None else self.names[place],
                    "label": "" if self.labels is None else self.labels[place],
                    "picture": kept if is_picture(kept) else "",
                    "text": "" if is_picture(kept) else kept,
                    "before": number(float(before)),
                    "after": number(float(after)),
                    "verdict": "lost" if after <= 0 else "kept",
                }
            )
        return found

    @property
    def dots(self) -> list[tuple[float, float, str]]:
        """Margins before (x) and as forecast (y) of the examples that were right, from 0 to 100, y downwards."""
        chosen = np.flatnonzero(self.right & np.isfinite(self.margins).all(1))
        chosen = np.random.default_rng(0).permutation(chosen)[:DOTS]
        if not len(chosen):
            return []
        low, high = self._range()
        scaled = 100 * (self.margins[chosen] - low) / (high - low)
        lost = self.margins[chosen, 1] <= 0
        return [
            (round(float(x), 1), round(float(100 - y), 1), "lost" if gone else "kept")
            for (x, y), gone in zip(scaled, lost, strict=True)
        ]

    @property
    def zero(self) -> float:
        """Where a margin of 0 lies on that scale."""
        low, high = self._range()
        return round(float(-100 * low / (high - low)), 1)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places on that scale, from 0 to 100, and the margins there: both ends, and 0 where it is apart from them."""
        low, high = self._range()
        places = {0.0: low, 100.0: high} | ({self.zero: 0.0} if 8 < self.zero < 92 else {})
        return [(place, number(value)) for place, value in sorted(places.items())]

    def _range(self) -> tuple[float, float]:
        known = self.margins[self.right & np.isfinite(self.margins).all(1)]
        low, high = min(0.0, float(known.min())), max(0.0, float(known.max()))
        return low, high if high > low else low + 1.0


def foreseen(name: str, forecast: Any, check: Any = None) -> Foreseen:
    """What the page shows of a forecast and its check."""
    old = forecast.old
    frame = forecast.frame()
    labels = [shown(one) for one in frame["label"]] if "label" in frame else None
    calibration: tuple[tuple[str, str, str], ...] = ()
    if check is not None:
        rows = check.calibration.itertuples(index=False)
        calibration = tuple((f"{row.examples:,}", percent(row.forecast_lost), percent(row.lost)) for row in rows)
    return Foreseen(
        str(name),
        str(forecast).splitlines(),
        () if check is None else str(check).splitlines(),
        [int(place) for place in forecast.at_risk(min(AT_RISK, len(old.right)))] if len(old.right) else [],
        labels,
        np.stack([old.margin_before, old.margin_after], axis=1).astype(float),
        np.asarray(old.right, dtype=bool),
        calibration,
        sizes_known=forecast.sizes_known,
    )
