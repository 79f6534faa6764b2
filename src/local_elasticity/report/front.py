"""The page's first screen: a headline with its interval, the pairs of classes that are coupled, and how it developed.

Every number comes from `statistics/`; here it gets words. There is one direction throughout: how many times as far a
step moves its own class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from local_elasticity.measures.registry import order_of
from local_elasticity.report.kinds import Kind, kind_of
from local_elasticity.report.pairs import MOST_CLASSES, Pairs, read_last
from local_elasticity.report.run import HelpersAndHarmers, Panel, Run, shown
from local_elasticity.statistics.change_point import FEWEST, half_life
from local_elasticity.statistics.contrast import Contrast, contrast
from local_elasticity.statistics.coupling import FEWEST_CLASSES, Coupling, coupling
from local_elasticity.statistics.development import Development, development
from local_elasticity.statistics.locality import NO_STRUCTURE, Locality, locality
from local_elasticity.statistics.locality import times as times_of
from local_elasticity.words import number, p_value, percent, times

PAIRS_NAMED, ALSO_NAMED = 3, 6
"""Coupled pairs that are shown, and more of them that are named."""

LONGEST_NAME = 16
"""Characters of a class in the sentence of a pair."""


@dataclass(frozen=True)
class Front:
    """What the first screen says of one measure.

    Attributes:
        kind, order: of the measure.
        headline: one sentence that the data support.
        evidence: the baseline and what else to know, a sentence each.
        coupled: the most coupled pairs of classes, as the page shows them.
        coupled_words: what is said of them, or why there are none.
        curve: how many times as far a step moves its own class, at every step, with its interval and change point.
    """

    kind: Kind
    order: int
    headline: str
    evidence: tuple[str, ...] = ()
    coupled: tuple[dict[str, Any], ...] = ()
    coupled_words: str = ""
    curve: dict[str, Any] | None = None


def front_of(run: Run, panel: Panel, pairs: Pairs | None) -> Front:
    """What can be said of the last matrix of a measure, and of how it came about."""
    kind, order = kind_of(panel.measure), order_of(panel.measure)
    why = _unable(run, panel, pairs)
    if why or pairs is None:
        return Front(kind, order, why)
    if kind == "unknown":
        words = f"The page does not know the measure {panel.measure}, so it draws no conclusion from it."
        return Front(kind, order, words, ("Register it with le.measure to say whether it is a ratio or has signs.",))
    read = read_last(run, panel)
    named, words = _coupled(coupling(read, signed=kind != "ratio"), pairs, kind, order)
    if len(set(read[2])) < 2:
        words = ""  # of targets of one class, no pair can be coupled
    if kind != "ratio":
        headline, evidence = _contrast(contrast(read), kind, panel)
        return Front(kind, order, _at_last(headline, panel), evidence, named, words)
    found = locality(read, measure=panel.measure)
    developed = None
    if len(panel.steps) > 1:
        developed = development(panel.steps, pairs.ratio, panel.values, *read[1:3], square=run.square)
    headline, evidence = _locality(found, order, developed, panel)
    return Front(kind, order, _at_last(headline, panel), evidence, named, words, _curve(developed, order))


def _at_last(headline: str, panel: Panel) -> str:
    """The headline of a history says which step it speaks of."""
    if len(panel.steps) < 2:
        return headline
    return f"At training step {panel.steps[-1]}, {headline[0].lower()}{headline[1:]}"


def _unable(run: Run, panel: Panel, pairs: Pairs | None) -> str:
    """Why nothing can be said about classes."""
    if not np.isfinite(panel.values[-1]).any():
        at = f" at step {panel.steps[-1]}" if len(panel.steps) > 1 else ""
        return f"No pair could be resolved{at}, so there is nothing to conclude. The checks below say why."
    classes = run.classes
    if classes is None:
        return "Classes are unknown, so no conclusion about classes is drawn. Pass source_labels= to compare them."
    if len(classes) == 1:
        return f"All examples have one class, {classes[0]}, so there are no other classes to compare with."
    if pairs is None:
        return f"{len(classes):,} classes are more than the page compares with each other ({MOST_CLASSES})."
    return ""


def _locality(found: Locality, order: int, developed: Development | None, panel: Panel) -> tuple[str, tuple[str, ...]]:
    if not np.isfinite(found.ratio):
        return found.headline, ()
    evidence = [found.evidence]
    if developed is not None:
        evidence.append(_developed(developed, order, panel, told=found.verdict == "local"))
    return found.headline, tuple(evidence)


def _developed(found: Development, order: int, panel: Panel, *, told: bool) -> str:
    steps, known = panel.steps, np.flatnonzero(np.isfinite(found.ratio))
    if not len(known):
        return ""
    first, last = known[0], known[-1]
    at = [times(float(times_of(found.ratio[place], order))) for place in (first, last)]
    text = f"Over training: {at[0]} at step {steps[first]}, {at[1]} at step {steps[last]}"
    if len(known) < FEWEST:
        return f"{text}; {len(known)} probes are too few to say when it changed."
    half = half_life(steps, times_of(found.ratio, order))
    if told and found.ratio[last] < found.ratio[first] and np.isfinite(half):
        text += f", half of the rise by step {half:.0f}"
    if told and np.isfinite(found.step):
        return f"{text}; change point between steps {found.step_low:.0f} and {found.step_high:.0f}."
    if told and found.steepest is not None:
        return f"{text}; steepest rise between steps {found.steepest[0]:.0f} and {found.steepest[1]:.0f}."
    return f"{text}."


def _contrast(found: Contrast, kind: Kind, panel: Panel) -> tuple[str, tuple[str, ...]]:
    measure = "the change of the loss" if kind == "loss" else panel.measure
    apart = f"{number(found.difference)} ({number(found.low)} to {number(found.high)})"
    medians = f"{number(found.within)} within a class and {number(found.between)} between classes"
    evidence = (f"With permuted class labels p {p_value(found.p_value, found.p_floor)}; intervals are 95 %.",)
    if not np.isfinite(found.difference) and panel.listed is not None:
        return _influences(panel.listed)
    if not np.isfinite(found.difference):
        return f"The median of {measure} is {medians}.", ()
    if not found.found:
        return f"{NO_STRUCTURE}: the median of {measure} is {medians}, no further apart than by chance.", evidence
    if kind == "loss":
        headline = (
            f"A step on one example lowers the loss of {percent(found.below_within)} of the other examples of its "
            f"class, and of {percent(found.below_between)} of the examples of other classes."
        )
        return headline, (f"The median change of the loss is {medians}; a difference of {apart}.", *evidence)
    if kind == "change":
        headline = f"From before to after, the median of {measure} is {medians}: classes differ by {apart}."
        return headline, evidence
    return f"The median of {measure} is {medians}: a difference of {apart}.", evidence


def _influences(found: HelpersAndHarmers) -> tuple[str, tuple[str, ...]]:
    """How many steps help, and of a single target the strongest."""
    lowered, raised = found.counts.sum(1)
    share = percent(float(lowered / max(1, lowered + raised)))
    if found.counts.shape[1] > 1:
        return f"A step on one example lowers the loss of a target in {share} of the {lowered + raised:,} pairs.", ()
    headline = f"Steps on {lowered:,} of {lowered + raised:,} examples ({share}) lower the loss of the target."
    ends = []
    for end, verb in enumerate(("helped", "harmed")):
        row = found.rows[end, 0, 0] if found.rows.shape[1] else -1
        if row >= 0:
            name = f"#{found.sources.places[row]}"
            name = name if found.sources.classes is None else f"{shown(found.sources.classes[row])} · {name}"
            ends.append(f"It is {verb} most by a step on {name}: {number(float(found.values[end, 0, 0]))}.")
    return headline, tuple(ends)


def _coupled(found: Coupling | None, pairs: Pairs, kind: Kind, order: int) -> tuple[tuple[dict[str, Any], ...], str]:
    """The most coupled pairs of classes, each once, in its stronger direction."""
    if found is None:
        return (), f"Coupled pairs are looked for from {FEWEST_CLASSES} classes on; the matrix shows all pairs."
    clear = [(str(found.classes[a]), str(found.classes[b]), (a, b)) for a, b in found.clear()]
    if not clear:
        return (), "No pair of classes is clearly coupled: every interval reaches what permuted class labels give."
    several: dict[frozenset[str], list[tuple[str, str, tuple[int, int]]]] = {}
    for one in clear:
        several.setdefault(frozenset(one[:2]), []).append(one)
    strongest = [max(directions, key=lambda one: _median(pairs, *one[:2])) for directions in several.values()]
    named = []
    for a, b, at in strongest[:PAIRS_NAMED]:
        value = [float(_in_order(part[at], kind, order)) for part in (found.value, found.low, found.high)]
        cells = [[pairs.classes.index(name) for name in one[:2]] for one in several[frozenset((a, b))]]
        named.append(_shown(pairs, a, b, value, kind, order) | {"clear": cells})
    return tuple(named), _also([f"{_clipped(a)} → {_clipped(b)}" for a, b, _ in strongest[PAIRS_NAMED:]])


def _also(more: list[str]) -> str:
    """The coupled pairs that have no card.

    >>> _also(["2 → 8", "6 → 2"]), _also([])
    ('Also coupled: 2 → 8, 6 → 2.', '')
    """
    rest = f" and {len(more) - ALSO_NAMED} more" if len(more) > ALSO_NAMED else ""
    return f"Also coupled: {', '.join(more[:ALSO_NAMED])}{rest}." if more else ""


def _median(pairs: Pairs, a: str, b: str) -> float:
    """The number of the cell of a and b."""
    return float(pairs.median[-1, pairs.classes.index(a), pairs.classes.index(b)])


def _clipped(name: str) -> str:
    """A name without its middle where it is long: names often differ at the end.

    >>> _clipped("a rather long name of class number 7")
    'a rather…umber 7'
    """
    tail = (LONGEST_NAME - 1) // 2
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1 - tail]}…{name[-tail:]}"


def _in_order(value: Any, kind: Kind, order: int) -> Any:
    return value ** (1 / order) if kind == "ratio" else value


def _shown(pairs: Pairs, a: str, b: str, value: list[float], kind: Kind, order: int) -> dict[str, Any]:
    """A pair as the page shows it: from the class whose step moves the other further. `value` is the coupling a → b."""
    back = _median(pairs, b, a) > _median(pairs, a, b)
    first, second = (b, a) if back else (a, b)
    i, j = pairs.classes.index(first), pairs.classes.index(second)
    one, other, x, y = map(_clipped, (first, second, a, b))
    median = pairs.median[-1]
    if kind == "ratio":
        there, own, again, its = (percent(median[at] ** (1 / order)) for at in ((i, j), (i, i), (j, i), (j, j)))
        words = f"{one} → {other}: {there}, to its own class {own}."
        words += f" Back, {other} → {one}: {again}, to its own class {its}."
        usual = percent(_median(pairs, a, b) ** (1 / order) / value[0])
        extra = f"{x} → {y} is {times(*value)} the {usual} that the other pairs of {x} and {y} suggest"
    else:
        what = "median changes of the loss" if kind == "loss" else "medians"
        words = f"{one} → {other}: {number(median[i, j])}; {other} → {one}: {number(median[j, i])} ({what})."
        middle, low, high = map(number, value)
        extra = f"{x} → {y} is {middle} ({low} to {high}) above what the other pairs of {x} and {y} suggest"
    return {"from": i, "to": j, "words": words, "coupling": extra}


def _curve(found: Development | None, order: int) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "times": times_of(found.ratio, order),
        "low": times_of(found.high, order),
        "high": times_of(found.low, order),
        "change": None if np.isnan(found.step) else [found.step_low, found.step_high],
        "steepest": found.steepest,
    }
