"""A run as the page shows it: a few examples on either side, and similarities of them over time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from unicodedata import category

import numpy as np

from local_elasticity.report.marked import Marked
from local_elasticity.words import in_natural_order

if TYPE_CHECKING:
    import pandas as pd

LARGEST_SIDE = 1000
"""Examples shown on a side of a matrix."""

EXACT_NUMBERS = 2_000_000
"""Similarities that a page keeps exactly, over all its matrices: about 10 MB."""

LONGEST_LABEL = 80
"""Characters of a label that are shown."""

LARGEST_NUMBER = float(np.finfo(np.float32).max)
"""Of the numbers that a page can hold."""

NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
"""Control characters, and halves of characters, which have no bytes in UTF-8."""

TURNS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that turn the direction of the text after them."""


@dataclass(frozen=True)
class Side:
    """The examples along one side of a matrix: where they stood in the run, and what is known of each."""

    places: np.ndarray
    classes: np.ndarray | None = None
    clusters: np.ndarray | None = None
    examples: Sequence[str] | None = None
    predictions: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.places)

    def chosen(self, rows: np.ndarray) -> Side:
        """Some of them."""
        kept = None if self.examples is None else [self.examples[row] for row in rows]
        classes, clusters, predictions = (_at(one, rows) for one in (self.classes, self.clusters, self.predictions))
        return Side(self.places[rows], classes, clusters, kept, predictions)


@dataclass(frozen=True)
class HelpersAndHarmers:
    """The sources that help and harm each target most, of all sources of a result, also those that a page does not
    show.

    Attributes:
        sources: all of them.
        rows: which of them, [2, k, m]: first those that help, then those that harm, the strongest first; −1 where there
            are fewer.
        values: the changes of the target's loss, [2, k, m].
        counts: how many sources lower and raise the loss of each target, [2, m].
    """

    sources: Side
    rows: np.ndarray
    values: np.ndarray
    counts: np.ndarray

    @property
    def used(self) -> np.ndarray:
        """The rows that are in a list, in rising order."""
        return np.unique(self.rows[self.rows >= 0])

    def chosen(self, columns: np.ndarray) -> HelpersAndHarmers:
        """Those of some targets."""
        return HelpersAndHarmers(
            self.sources, self.rows[..., columns], self.values[..., columns], self.counts[:, columns]
        )


@dataclass(frozen=True)
class Panel:
    """One measure: similarities [t, n, m] at the steps; `own` and `floor` are the denominators and what they had to
    clear, [n], where they were kept.
    """

    measure: str
    values: np.ndarray
    steps: tuple[int, ...] = ()
    own: np.ndarray | None = None
    floor: np.ndarray | None = None
    words: str = ""
    """What a number of it says, where the result carries that."""
    title: str = ""
    """What the page calls it, where that is not the measure's name."""
    listed: HelpersAndHarmers | None = None
    """Helpers and harmers at the last time, where the measure is a change of the loss."""

    def chosen(self, rows: np.ndarray, columns: np.ndarray) -> Panel:
        listed = None if self.listed is None else self.listed.chosen(columns)
        values, own, floor = self.values[:, rows][:, :, columns], _at(self.own, rows), _at(self.floor, rows)
        return replace(self, values=values, own=own, floor=floor, listed=listed)


@dataclass(frozen=True)
class Run:
    """What was measured, of which examples, and how. `square` says that the targets are the sources; `numbers` are
    the measures of features, [t] each; `state` is the loss and the accuracy of the sources, [t] each; `apart` are the
    distances between the examples, [n, m], where they are known; `marked` are texts with a mark on each token."""

    name: str
    kind: str
    panels: tuple[Panel, ...]
    sources: Side
    targets: Side
    square: bool
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    numbers: Mapping[str, np.ndarray] = field(default_factory=dict)
    state: Mapping[str, np.ndarray] = field(default_factory=dict)
    apart: np.ndarray | None = None
    marked: tuple[Marked, ...] = ()
    drawn: str = ""
    """How many of all examples these are, where that is not all."""
    headline: str = ""
    """What a comparison found over all pairs."""
    brief: str = ""
    """The same in few words."""
    changes: pd.DataFrame | None = None
    """Its frame of class pairs."""

    @property
    def classes(self) -> list[str] | None:
        """The names of all classes, in order; None where either side has none."""
        if self.sources.classes is None or self.targets.classes is None:
            return None
        return in_order([*self.sources.classes, *self.targets.classes])


@dataclass(frozen=True)
class Unshown:
    """What was asked for and cannot be shown, and why."""

    name: str
    why: str


def shown(text: Any) -> str:
    """A label as it is shown: without characters that control or turn the text, and not longer than a line.

    >>> shown("a" * 200)[-4:], shown(3.0), shown("two\\nlines")
    ('aaa…', '3', 'two lines')
    """
    plain = _whole(text)[: 4 * LONGEST_LABEL]
    plain = " ".join("".join(" " if _disturbs(c) else c for c in plain).split())
    return plain if len(plain) <= LONGEST_LABEL else plain[: LONGEST_LABEL - 1] + "…"


def as_text(text: str) -> str:
    """The same with a replacement character for each control character and each half of a character.

    >>> as_text("a\\x00b\\ud800") == "a\\ufffdb\\ufffd"
    True
    """
    return NO_TEXT.sub("\ufffd", text)


def in_range(run: Run) -> Run:
    """The same without similarities that are too large for a page: they are left out, and a note says how many."""
    with np.errstate(invalid="ignore"):
        beyond = [np.isfinite(panel.values) & (np.abs(panel.values) > LARGEST_NUMBER) for panel in run.panels]
    count = sum(int(one.sum()) for one in beyond)
    if not count:
        return run
    panels = tuple(
        replace(panel, values=np.where(large, np.nan, panel.values))
        for panel, large in zip(run.panels, beyond, strict=True)
    )
    note = f"Similarities beyond ±{LARGEST_NUMBER:.1e} are left out as unresolved: {count:,} of them."
    return replace(run, panels=panels, notes=(*run.notes, note))


def named(run: Run) -> Run:
    """The same with classes and clusters by the names they are shown under; different labels have different names."""
    lists = [panel.listed.sources for panel in run.panels if panel.listed is not None]
    sides = (run.sources, run.targets, *lists)
    of_classes = [one for side in sides for one in (side.classes, side.predictions) if one is not None]
    classes = names_of([label for one in of_classes for label in one])
    clusters = names_of([label for side in sides if side.clusters is not None for label in side.clusters])

    def renamed(side: Side) -> Side:
        return replace(
            side,
            classes=_renamed(side.classes, classes),
            clusters=_renamed(side.clusters, clusters),
            predictions=_renamed(side.predictions, classes),
        )

    changes = run.changes
    if changes is not None:
        for name in ("source_class", "target_class"):
            changes = changes.assign(**{name: [classes.get(_whole(one), "") for one in changes[name]]})
            changes = changes[changes[name] != ""]  # without classes that the sample has no example of
    listed = [one and replace(one, sources=renamed(one.sources)) for one in (panel.listed for panel in run.panels)]
    panels = tuple(replace(panel, listed=one) for panel, one in zip(run.panels, listed, strict=True))
    sources, targets = renamed(run.sources), renamed(run.targets)
    return replace(run, sources=sources, targets=targets, panels=panels, changes=changes)


def names_of(labels: Sequence[Any]) -> dict[str, str]:
    """The name of every different label, by its whole text; labels that shorten to the same name are numbered.

    >>> list(names_of(["a" * 99 + "b", "a" * 99 + "c"]).values())[1][-6:]
    'aa… #2'
    """
    names: dict[str, str] = {}
    used: dict[str, int] = {}
    for label in labels:
        whole = _whole(label)
        if whole not in names:
            name = shown(whole)
            used[name] = used.get(name, 0) + 1
            names[whole] = name if used[name] == 1 else f"{name[: LONGEST_LABEL - 8].rstrip('…')}… #{used[name]}"
    return names


def in_order(labels: Sequence[Any]) -> list[str]:
    """Different labels as they are shown, in natural order.

    >>> in_order([10, 9, 9]), in_order(["class 10", "class 9"])
    (['9', '10'], ['class 9', 'class 10'])
    """
    return in_natural_order(shown(label) for label in labels)


def sampled(run: Run, side: int, *, longest: int = 0) -> Run:
    """At most `side` sources and targets, each class in its share, chosen with seed 0; what is left out is noted.

    Where one side has fewer, the other may have more, up to `longest`, as long as there are not more pairs.
    """
    most = [
        max(side, min(longest, side**2 // max(1, len(other)))) if len(other) < side else side
        for other in (run.targets, run.sources)
    ]
    rows = _sample(run.sources, most[0])
    columns = rows if run.square else _sample(run.targets, most[1])
    if len(rows) == len(run.sources) and len(columns) == len(run.targets):
        return run
    note = (
        f"{len(run.sources):,} sources and {len(run.targets):,} targets are more than a page can hold. It shows "
        f"{len(rows):,} and {len(columns):,} of them, drawn at random (seed 0) with every class in its share; every "
        "number on this page is of those"
        + (", but helpers and harmers are listed of all sources" if any(one.listed for one in run.panels) else "")
        + ". S.le.nearest searches all of them."
    )
    return replace(
        run,
        panels=tuple(panel.chosen(rows, columns) for panel in run.panels),
        sources=run.sources.chosen(rows),
        targets=run.targets.chosen(columns),
        notes=(*run.notes, note),
        apart=None if run.apart is None else run.apart[np.ix_(rows, columns)],
        drawn=run.drawn or share_words(len(rows), len(run.sources), len(columns), len(run.targets)),
    )


def share_words(rows: int, n: int, columns: int, m: int) -> str:
    """How many sources and targets of all are shown, as the first screen says it.

    >>> share_words(1000, 5000, 3, 3)
    'The page shows 1,000 of 5,000 sources and 3 targets, drawn at random.'
    """
    some = [f"{few:,}" + (f" of {all_:,}" if few < all_ else "") for few, all_ in ((rows, n), (columns, m))]
    return f"The page shows {some[0]} sources and {some[1]} {'target' if m == 1 else 'targets'}, drawn at random."


def side_for(matrices: int) -> int:
    """How many examples fit on a side where a page shows so many matrices."""
    return min(LARGEST_SIDE, int((EXACT_NUMBERS / max(1, matrices)) ** 0.5))


def chosen_rows(classes: np.ndarray | None, size: int, limit: int) -> np.ndarray:
    """`limit` of `size` places in rising order, every class in its share."""
    if size <= limit:
        return np.arange(size)
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(size)
    if classes is None:
        return np.sort(shuffled[:limit])
    _, kind, count = np.unique(np.asarray(classes)[shuffled], return_inverse=True, return_counts=True)
    rank = np.empty(size)
    for one, total in enumerate(count):
        rank[kind == one] = (np.arange(total) + rng.random()) / total
    return np.sort(shuffled[np.argsort(rank, kind="stable")[:limit]])


def _whole(label: Any) -> str:
    if isinstance(label, (float, np.floating)) and float(label).is_integer():
        label = int(label)
    return str(label)


def _disturbs(character: str) -> bool:
    """Control characters, halves of characters, and what turns the direction of text; joiners of letters may stay."""
    if character in TURNS:
        return True
    return category(character) in ("Cc", "Cs", "Zl", "Zp")


def _renamed(labels: np.ndarray | None, names: Mapping[str, str]) -> np.ndarray | None:
    return None if labels is None else np.array([names[_whole(label)] for label in labels], dtype=str)


def _at(values: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if values is None else values[rows]


def _sample(side: Side, limit: int) -> np.ndarray:
    return chosen_rows(side.classes, len(side), limit)
