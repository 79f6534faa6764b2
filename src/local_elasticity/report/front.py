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
from local_elasticity.report.run import Panel, Run
from local_elasticity.statistics.change_point import FEWEST, half_life
from local_elasticity.statistics.contrast import Contrast, contrast
from local_elasticity.statistics.coupling import FEWEST_CLASSES, Coupling, coupling
from local_elasticity.statistics.development import Development, development
from local_elasticity.statistics.locality import NO_STRUCTURE, Locality, locality
from local_elasticity.statistics.locality import times as times_of
from local_elasticity.words import number, p_value, percent, times

PAIRS_NAMED, ALSO_NAMED = 3, 6
"""Coupled pairs that are shown, and more of them that are named."""


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
    named, words = _coupled(coupling(read, signed=kind != "ratio"), pairs, panel, kind, order)
    if kind != "ratio":
        headline, evidence = _contrast(contrast(read), kind, panel.measure)
        return Front(kind, order, headline, evidence, named, words)
    found = locality(read, measure=panel.measure)
    developed = None
    if len(panel.steps) > 1:
        developed = development(panel.steps, pairs.ratio, panel.values, *read[1:3], square=run.square)
    headline, evidence = _locality(found, order, developed, panel)
    return Front(kind, order, headline, evidence, named, words, _curve(developed, order))


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


def _contrast(found: Contrast, kind: Kind, measure: str) -> tuple[str, tuple[str, ...]]:
    apart = f"{number(found.difference)} ({number(found.low)} to {number(found.high)})"
    medians = f"{number(found.within)} within a class and {number(found.between)} between classes"
    evidence = (f"With permuted class labels p {p_value(found.p_value, found.p_floor)}; intervals are 95 %.",)
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


def _coupled(
    found: Coupling | None, pairs: Pairs, panel: Panel, kind: Kind, order: int
) -> tuple[tuple[dict[str, Any], ...], str]:
    """The most coupled pairs of classes, each once; of two directions that clear the baseline, the stronger first."""
    if found is None:
        return (), f"Coupled pairs are looked for from {FEWEST_CLASSES} classes on; the matrix shows all pairs."
    clear = [(str(found.classes[a]), str(found.classes[b]), (a, b)) for a, b in found.clear()]
    if not clear:
        return (), "No pair of classes is clearly coupled: every interval reaches what permuted class labels give."
    several: dict[frozenset[str], list[tuple[str, str, tuple[int, int]]]] = {}
    for one in clear:
        several.setdefault(frozenset(one[:2]), []).append(one)
    strongest = [max(directions, key=lambda one: _share(pairs, *one[:2])) for directions in several.values()]
    named = []
    for a, b, at in strongest[:PAIRS_NAMED]:
        value = [float(_in_order(part[at], kind, order)) for part in (found.value, found.low, found.high)]
        named.append(_shown(pairs, panel, a, b, value, kind, order))
    return tuple(named), _also([f"{a} → {b}" for a, b, _ in strongest[PAIRS_NAMED:]])


def _also(more: list[str]) -> str:
    """The coupled pairs that have no card.

    >>> _also(["2 → 8", "6 → 2"]), _also([])
    ('Also coupled: 2 → 8, 6 → 2.', '')
    """
    rest = f" and {len(more) - ALSO_NAMED} more" if len(more) > ALSO_NAMED else ""
    return f"Also coupled: {', '.join(more[:ALSO_NAMED])}{rest}." if more else ""


def _share(pairs: Pairs, a: str, b: str) -> float:
    """How far a step on a moves b, as a share of how far it moves a."""
    i, j = pairs.classes.index(a), pairs.classes.index(b)
    return float(pairs.median[-1, i, j] / abs(pairs.median[-1, i, i]))


def _in_order(value: Any, kind: Kind, order: int) -> Any:
    return value ** (1 / order) if kind == "ratio" else value


def _shown(pairs: Pairs, panel: Panel, a: str, b: str, value: list[float], kind: Kind, order: int) -> dict[str, Any]:
    i, j = pairs.classes.index(a), pairs.classes.index(b)
    median = pairs.median[-1]
    if kind == "ratio":
        there, own, back, other = (percent(median[at] ** (1 / order)) for at in ((i, j), (i, i), (j, i), (j, j)))
        words = f"{a} → {b}: {there}, to its own class {own}. Back, {b} → {a}: {back}, to its own class {other}."
        usual = percent(float(median[i, j]) ** (1 / order) / value[0])
        extra = f"{times(*value)} the {usual} that the other pairs of {a} and {b} suggest"
    else:
        words = f"{a} → {b}: {number(median[i, j])}; {b} → {a}: {number(median[j, i])} (medians of {panel.measure})."
        middle, low, high = map(number, value)
        extra = f"{middle} ({low} to {high}) above what the other pairs of {a} and {b} suggest"
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
