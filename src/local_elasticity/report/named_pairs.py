"""The pairs that the first screen names: coupled classes, what changed most, or the strongest pairs of examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from local_elasticity.measures.registry import known_measure, order_of
from local_elasticity.report.kinds import Kind
from local_elasticity.report.pairs import Pairs
from local_elasticity.report.run import Panel, Run
from local_elasticity.statistics.class_pairs import ReadPairs
from local_elasticity.statistics.coupling import Coupling, Place, coupled_since
from local_elasticity.statistics.locality import SIGNIFICANT
from local_elasticity.words import number, percent, times

if TYPE_CHECKING:
    import pandas as pd

PAIRS_NAMED, ALSO_NAMED = 3, 6
"""Pairs that have a card, and more of them that are named."""

MOST_TESTED = 20
"""With more classes, coupling is tested in the last matrix alone."""

LONGEST_NAME = 16
"""Characters of a class in the sentence of a pair."""


@dataclass(frozen=True)
class NamedPairs:
    """Pairs with a card each, and what is said about them.

    Attributes:
        title: above the cards.
        pairs: `head` in bold letters, `words`, `more` in small letters, and either `from` and `to`, places in the
            panel's classes, or `source` and `target`, places of examples. Over training, `since` says from which step
            on it was coupled, `cell` is its value, `suggested` what row and column suggest, and `over` their quotient.
        words: below the cards, or why there are none.
        larger: below the matrix, why the largest values without a frame have none.
        framed: the cells of the class matrix that have a frame.
        legend: what a frame says.
        expected: what row and column of each cell suggest, as the matrix shows it.
    """

    title: str = ""
    pairs: tuple[dict[str, Any], ...] = ()
    words: str = ""
    larger: str = ""
    framed: tuple[tuple[int, int], ...] = ()
    legend: str = ""
    expected: np.ndarray | None = None

    @property
    def sentences(self) -> list[str]:
        """All of it."""
        cards = [
            " ".join(filter(None, (one["head"], one["words"], one["more"], one.get("since")))) for one in self.pairs
        ]
        return [*cards, *filter(None, (self.words, self.larger))]


def coupled_pairs(found: Coupling, panel: Panel, pairs: Pairs, kind: Kind, order: int, read: ReadPairs) -> NamedPairs:
    """The coupled pairs of classes, each once: in the direction that is coupled, the larger one if both are.

    Args:
        found: the pairs at the last time.
        panel, pairs: the measure, and the medians of its classes over time.
        kind, order: of the measure.
        read: the last matrix with its classes.
    """
    coupled, when = found.coupled(), f" at step {panel.steps[-1]}" if len(panel.steps) > 1 else ""
    title = f"Coupled classes{when}" if kind == "ratio" else f"Pairs of classes that stand out{when}"
    cell = [pairs.classes.index(str(name)) for name in found.classes]
    suggested = np.full((len(pairs.classes),) * 2, np.nan)
    suggested[np.ix_(cell, cell)] = found.expected ** (1 / order) if kind == "ratio" else found.expected
    if not coupled:
        counted = _counted(read) if np.isfinite(found.excess).any() else ""
        return NamedPairs(title, words=f"{found.nothing} {counted}".strip(), expected=suggested)
    once = [(a, b) for place, (a, b) in enumerate(coupled) if (b, a) not in coupled[:place]]
    shown = once[:PAIRS_NAMED]
    courses = _courses(found, shown, [(cell[a], cell[b]) for a, b in shown], panel, pairs, kind, order, read)
    cards = tuple(
        dict(zip(("head", "words"), found.sentence((a, b), clipped), strict=True))
        | {"from": cell[a], "to": cell[b], **course}
        | {"more": _more(pairs, cell[a], cell[b], kind, order, _symmetric(found), back=(b, a) in coupled)}
        for (a, b), course in zip(shown, courses, strict=True)
    )
    words = _also([_both_ways(found, at, coupled) for at in once[PAIRS_NAMED:]])
    clearly = f"clearly {'above' if kind == 'ratio' else 'different from'} what its row and column suggest"
    legend = f"A frame means {clearly}, not a large number."
    framed = tuple((cell[a], cell[b]) for a, b in coupled)
    return NamedPairs(title, cards, words, found.larger(coupled, clipped), framed, legend, suggested)


def _counted(read: ReadPairs) -> str:
    """How many examples a class has.

    >>> _counted((np.eye(3), np.array(["a", "a", "b"]), np.array(["a", "b", "b"]), None, False))
    'There are 1 to 2 examples a class.'
    """
    counts = np.concatenate([np.unique(side, return_counts=True)[1] for side in read[1:3]])
    few, many = int(counts.min()), int(counts.max())
    one = "1 example" if many == 1 else f"{many:,} examples" if few == many else f"{few:,} to {many:,} examples"
    return f"There {'is' if many == 1 else 'are'} {one} a class."


def _courses(
    found: Coupling,
    shown: Sequence[Place],
    cells: Sequence[Place],
    panel: Panel,
    pairs: Pairs,
    kind: Kind,
    order: int,
    read: ReadPairs,
) -> list[dict[str, Any]]:
    """Of each pair over training: its value, what row and column suggest, and from which step on it was coupled."""
    if len(panel.steps) < 2:
        return [{} for _ in shown]
    since: list[int] | None = None
    if len(found.classes) <= MOST_TESTED:
        named = [(found.classes[a], found.classes[b]) for a, b in shown]
        since = coupled_since(panel.values, *read[1:3], named, square=read[-1], measure=panel.measure)
    courses = []
    for k, (a, b) in enumerate(cells):
        over = found.course(pairs.median, (a, b))
        value = np.array(pairs.median[:, a, b])
        with np.errstate(divide="ignore", invalid="ignore"):
            value = value ** (1 / order) if kind == "ratio" else value
            usual = value / over if kind == "ratio" else value - over
        words = _since(None if since is None else since[k], over, panel.steps, kind)
        courses.append({"over": over, "cell": value, "suggested": usual, "since": words})
    return courses


def _since(place: int | None, over: np.ndarray, steps: Sequence[int], kind: Kind) -> str:
    """From which step on a pair was coupled.

    >>> _since(1, np.array([1.0, 1.31, 4.0]), [0, 20, 400], "ratio")
    'Clearly coupled from step 20 on (1.3× there).'
    >>> _since(2, np.array([1.0, 1.31, 4.0]), [0, 20, 400], "ratio")
    'Clearly coupled at step 400, not for good before.'
    """
    if place is None:
        return f"From which step on is not tested with more than {MOST_TESTED} classes."
    if place == len(steps) - 1:
        return f"Clearly coupled at step {steps[-1]}, not for good before."
    value = float(over[place])
    there = "" if not np.isfinite(value) else f" ({times(value) if kind == 'ratio' else number(value)} there)"
    return f"Clearly coupled from step {steps[place]} on{there}."


def _symmetric(found: Coupling) -> bool:
    known = known_measure(found.measure)
    return known is not None and known.symmetric


def _more(pairs: Pairs, a: int, b: int, kind: Kind, order: int, symmetric: bool, *, back: bool) -> str:
    """The values within the two classes, and in the other direction."""
    x, y = clipped(pairs.classes[a]), clipped(pairs.classes[b])
    there, own, again = (amount(float(pairs.median[-1][at]), kind, order) for at in ((b, b), (a, a), (b, a)))
    if symmetric:
        return f"Within {x}: {own}. Within {y}: {there}."
    return f"Within {x}: {own}. Back, {y} → {x}: {again}{', coupled too' if back else ''}."


def _both_ways(found: Coupling, at: tuple[int, int], coupled: Sequence[tuple[int, int]]) -> str:
    back = at[::-1] in coupled and not _symmetric(found)
    return found.name(at, clipped) + " and back" * back


def _also(more: Sequence[str]) -> str:
    """The coupled pairs that have no card.

    >>> _also(["2 → 8", "6 → 2"]), _also([])
    ('Also coupled: 2 → 8, 6 → 2.', '')
    """
    rest = f" and {len(more) - ALSO_NAMED} more" if len(more) > ALSO_NAMED else ""
    return f"Also coupled: {', '.join(more[:ALSO_NAMED])}{rest}." if more else ""


def disagreement(found: Mapping[str, Coupling]) -> str:
    """Which pairs are coupled by some of the measures only, in one sentence; "" where all measures agree."""
    by_measure = {
        f"√{name}" if order_of(name) == 2 else name: [one.name(at, clipped) for at in one.coupled()]
        for name, one in found.items()
    }
    groups: dict[tuple[str, ...], list[str]] = {}
    for pair in dict.fromkeys(pair for several in by_measure.values() for pair in several):
        groups.setdefault(tuple(name for name, several in by_measure.items() if pair in several), []).append(pair)
    some = [(several, names) for names, several in groups.items() if len(names) < len(by_measure)]
    parts = [
        f"{_listed(several)} only by {' and '.join(names)}, not by {_without(names, by_measure)}"
        for several, names in some
    ]
    if not parts:
        return ""
    verb = "is" if len(some[0][0]) == 1 else "are"
    return f"The measures disagree: {'; '.join(parts).replace(' only by', f' {verb} coupled only by', 1)}."


def _without(names: Sequence[str], all_names: Iterable[str]) -> str:
    return " or ".join(name for name in all_names if name not in names)


def _listed(several: Sequence[str]) -> str:
    """
    >>> _listed(["1 → 2", "3 → 4"]), _listed(list("abcde"))
    ('1 → 2 and 3 → 4', 'a, b, c and 2 more')
    """
    if len(several) > PAIRS_NAMED:
        return f"{', '.join(several[:PAIRS_NAMED])} and {len(several) - PAIRS_NAMED} more"
    return " and ".join(filter(None, (", ".join(several[:-1]), several[-1])))


def changed_pairs(changes: pd.DataFrame, pairs: Pairs) -> NamedPairs:
    """The pairs of classes that rose and fell most, of those that changed clearly, from a comparison's own frame."""
    known = changes[np.isfinite(changes["p_adjusted"])]
    title, many = "What changed most, after − before", len(changes)
    if known.empty:
        return NamedPairs(title, words="No pair of classes is tested: a test needs five examples of each class.")
    clear = known[known["p_adjusted"] < SIGNIFICANT]
    tested = f"p < {SIGNIFICANT:g} after correction for {many} pairs of classes"
    if clear.empty:
        return NamedPairs(title, words=f"No pair of classes changed clearly ({tested}).")
    rose, fell = clear[clear["difference"] > 0], clear[clear["difference"] < 0]
    chosen = sorted([*_largest(rose), *_largest(fell)], key=lambda one: -one[0])
    framed = tuple((pairs.classes.index(a), pairs.classes.index(b)) for _, a, b, _ in chosen)
    cards = tuple({"from": a, "to": b, **said} for (a, b), (*_, said) in zip(framed, chosen, strict=True))
    words = f"{len(clear)} of {many} pairs of classes changed clearly: {len(rose)} rose, {len(fell)} fell ({tested})."
    return NamedPairs(title, cards, words, framed=framed, legend="A frame marks the largest clear changes.")


def _largest(rows: pd.DataFrame) -> list[tuple[float, str, str, dict[str, str]]]:
    """The rows with the largest differences: their sizes, classes and words."""
    found = []
    largest: Any = rows.loc[rows["difference"].abs().sort_values(ascending=False).index[:PAIRS_NAMED]]
    for row in largest.itertuples():
        sign = 1 if row.difference > 0 else -1
        low, high = sorted((sign * row.low, sign * row.high))
        verb = "rose" if sign > 0 else "fell"
        head = f"{clipped(row.source_class)} → {clipped(row.target_class)} {verb} by {number(abs(row.difference))}"
        medians = f"Medians over pairs: {number(row.before)} before, {number(row.after)} after."
        words = f"({number(low)} to {number(high)}) in the median of the pairs' differences."
        said = {"head": head, "words": words, "more": medians}
        found.append((abs(row.difference), row.source_class, row.target_class, said))
    return found


def strongest_pairs(run: Run, panel: Panel, kind: Kind, order: int) -> NamedPairs:
    """The pairs of examples with the largest values, each once; a description without a test."""
    values = np.array(panel.values[-1], dtype=float)
    if run.square:
        np.fill_diagonal(values, np.nan)
    size = np.where(np.isfinite(values), np.abs(values), -1.0)
    if run.square:
        lower = np.tril(np.ones(size.shape, dtype=bool))
        size[np.where(lower, size <= size.T, size < size.T)] = -1  # the larger direction of a pair
    best = np.argsort(-size, axis=None, kind="stable")[:PAIRS_NAMED]
    cards = []
    for i, j in (divmod(int(one), values.shape[1]) for one in best if size.flat[one] >= 0):
        head = f"#{run.sources.places[i]} → #{run.targets.places[j]}: {amount(values[i, j], kind, order)}."
        back = f"Back: {amount(values[j, i], kind, order)}." if run.square else ""
        cards.append({"source": i, "target": j, "head": head, "words": back, "more": ""})
    title = "Largest changes" if kind == "change" else "Strongest pairs"
    at = f" at step {panel.steps[-1]}" if len(panel.steps) > 1 else ""
    return NamedPairs(title + at, tuple(cards)) if cards else NamedPairs()


def clipped(name: str) -> str:
    """A name without its middle where it is long: names often differ at the end.

    >>> clipped("a rather long name of class number 7")
    'a rather…umber 7'
    """
    tail = (LONGEST_NAME - 1) // 2
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1 - tail]}…{name[-tail:]}"


def amount(value: float, kind: Kind, order: int) -> str:
    """Ratios in percent of how far the source itself moves."""
    return percent(value ** (1 / order)) if kind == "ratio" and value >= 0 else number(value)
