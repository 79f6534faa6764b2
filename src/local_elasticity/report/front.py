"""The page's first screen: a headline with its interval, the pairs that stand out, and how it developed.

Every number comes from `statistics/`; here it gets words. There is one direction throughout: how many times as far a
step moves its own class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from local_elasticity.measures.registry import order_of
from local_elasticity.report.examples import is_picture
from local_elasticity.report.kinds import Kind, kind_of
from local_elasticity.report.named_pairs import (
    NamedPairs,
    amount,
    changed_pairs,
    coupled_pairs,
    disagreement,
    strongest_pairs,
)
from local_elasticity.report.pairs import MOST_CLASSES, Pairs, read_last
from local_elasticity.report.run import HelpersAndHarmers, Panel, Run, Side, shown
from local_elasticity.statistics.change_point import FEWEST, half_life, last_quarter
from local_elasticity.statistics.class_pairs import pair_rows
from local_elasticity.statistics.contrast import Contrast, contrast
from local_elasticity.statistics.coupling import Coupling, coupling
from local_elasticity.statistics.development import Development, development
from local_elasticity.statistics.locality import NO_STRUCTURE, Locality, locality, quartiles
from local_elasticity.statistics.locality import times as times_of
from local_elasticity.words import number, p_value, percent, times


@dataclass(frozen=True)
class Brief:
    """The headline's number in a list of runs: in words, and as a number of times with its interval where it is one."""

    words: str = ""
    times: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Front:
    """What the first screen says of one measure.

    Attributes:
        kind, order: of the measure.
        headline: one sentence that the data support.
        evidence: the baseline and what else to know, a sentence each.
        named: the pairs that have a card.
        curve: how many times as far a step moves its own class, at every step, with its interval and change point.
        brief: the number in a list of runs.
        coupling: what the named pairs of classes are from, where they are coupled ones.
    """

    kind: Kind
    order: int
    headline: str
    evidence: tuple[str, ...] = ()
    named: NamedPairs = field(default_factory=NamedPairs)
    curve: dict[str, Any] | None = None
    brief: Brief = field(default_factory=Brief)
    coupling: Coupling | None = None


def fronts_of(run: Run, pairs: Sequence[Pairs | None]) -> list[Front]:
    """One for each measure, with what they say together: where measures disagree, or how two models compare."""
    found = [front_of(run, panel, pair) for panel, pair in zip(run.panels, pairs, strict=True)]
    if run.kind == "comparison":
        found[-1] = replace(found[-1], evidence=(*_before_and_after(*found[:2]), *found[-1].evidence))
    else:
        ratios = [shown(panel.title or panel.measure) for panel in run.panels], [one.coupling for one in found]
        said = disagreement(
            {name: one for name, one in zip(*ratios, strict=True) if one is not None and not one.signed}
        )
        found = [one if one.coupling is None or one.coupling.signed else _also_said(one, said) for one in found]
    return [replace(one, evidence=(*one.evidence, run.drawn)) if run.drawn else one for one in found]


def _also_said(front: Front, said: str) -> Front:
    return replace(front, named=replace(front.named, words=f"{front.named.words} {said}".strip()))


def _before_and_after(before: Front, after: Front) -> tuple[str, ...]:
    """How local the two models are that a comparison is of."""
    if before.brief.times is None or after.brief.times is None:
        return ()
    then, now = (times(*one.brief.times) for one in (before, after) if one.brief.times is not None)
    return (f"A step moves its own class {then} as far as other classes before, and {now} after.",)


def front_of(run: Run, panel: Panel, pairs: Pairs | None) -> Front:
    """What can be said of the last matrix of a measure, and of how it came about."""
    kind, order = kind_of(panel.measure), order_of(panel.measure)
    if not np.isfinite(panel.values[-1]).any():
        at = f" at step {panel.steps[-1]}" if len(panel.steps) > 1 else ""
        words = f"No pair could be resolved{at}, so there is nothing to conclude. The checks below say why."
        return Front(kind, order, words, brief=Brief("no pair resolved"))
    if kind == "unknown":
        words = f"The page does not know the measure {panel.measure}, so it draws no conclusion from it."
        return Front(kind, order, words, ("Register it with le.measure to say whether it is a ratio or has signs.",))
    if pairs is None or len(pairs.classes) < 2:
        return _without_classes(run, panel, kind, order)
    read = read_last(run, panel)
    if kind == "change":
        return _change(run, panel, pairs)
    found = coupling(read, measure=panel.measure)
    named = NamedPairs()
    if len(set(read[2])) > 1:  # with targets of one class, no pair can be coupled
        named = coupled_pairs(found, pairs, kind, order, _at(panel))
    if kind != "ratio":
        headline, evidence, brief = _contrast(contrast(read), kind, panel)
        return Front(kind, order, _at_last(headline, panel), evidence, named, None, brief, found)
    local = locality(read, measure=panel.measure)
    developed = None
    if len(panel.steps) > 1:
        developed = development(panel.steps, pairs.ratio, panel.values, *read[1:3], square=run.square)
    headline, evidence, brief = _locality(local, order, developed, panel)
    return Front(kind, order, _at_last(headline, panel), evidence, named, _curve(developed, order), brief, found)


def _at(panel: Panel) -> str:
    return f" at step {panel.steps[-1]}" if len(panel.steps) > 1 else ""


def _at_last(headline: str, panel: Panel) -> str:
    """The headline of a history says which step it speaks of."""
    if len(panel.steps) < 2:
        return headline
    return f"At training step {panel.steps[-1]}, {headline[0].lower()}{headline[1:]}"


def _without_classes(run: Run, panel: Panel, kind: Kind, order: int) -> Front:
    """How far a step moves other examples, and the strongest pairs, where classes cannot be compared."""
    named = NamedPairs() if kind == "loss" else strongest_pairs(run, panel, kind, order)
    headline, evidence, brief = _over_all(run, panel, kind, order)
    if kind == "change" and run.headline:
        headline, brief = run.headline, Brief(run.brief)
    return Front(kind, order, _at_last(headline, panel), (*evidence, _no_classes(run)), named, brief=brief)


def _no_classes(run: Run) -> str:
    """Why classes are not compared."""
    classes = run.classes
    if classes is None:
        return "There are no class labels. With source_labels= the page compares classes."
    if len(classes) == 1:
        return f"All examples have one class, {classes[0]}, so classes are not compared."
    return f"Classes are not compared: {len(classes):,} are more than a page can show ({MOST_CLASSES})."


def _over_all(run: Run, panel: Panel, kind: Kind, order: int) -> tuple[str, tuple[str, ...], Brief]:
    """The median over all pairs with its interval, and the middle half of the pairs."""
    n, m = panel.values.shape[1:]
    read = panel.values[-1], np.zeros(n, dtype=int), np.zeros(m, dtype=int), None, run.square
    ((_, _, *middle, count, _),) = pair_rows(read, "median", "exclude", 200)
    counted = np.isfinite(panel.values[-1]) & ~(np.eye(n, m, dtype=bool) & run.square)
    if not count:
        return "No pair of two different examples could be resolved.", (), Brief("no pair resolved")
    quarter, _, most = quartiles(panel.values[-1][counted][None])[:, 0]
    value, low, high, quarter, most = (amount(float(part), kind, order) for part in (*middle, quarter, most))
    spread = f"The middle half of the {count:,} pairs lies between {quarter} and {most}."
    one = noun_of(run.sources)
    if kind == "loss" and panel.listed is not None:
        headline, ends = _influences(panel.listed, one)
        median = f"The median change of the loss is {value} (95 % interval {low} to {high}). {spread}"
        return headline, (*ends, median), Brief(f"change of the loss {value} ({low} to {high})")
    if kind == "ratio":
        other = f"another {one}" if run.square else f"a target {noun_of(run.targets)}"
        headline = f"A step on one {one} moves the prediction for {other} {value} ({low} to {high}) as far as its own."
        evidence = f"This is the median over pairs with its 95 % interval. {spread}"
        return headline, (evidence,), Brief(f"{value} ({low} to {high}) as far as its own")
    headline = f"The median of {panel.measure} over all pairs is {value} (95 % interval {low} to {high})."
    return headline, (spread,), Brief(f"median {value} ({low} to {high})")


def noun_of(side: Side) -> str:
    """What its examples are called."""
    kept = [one for one in side.examples or () if one]
    if kept and all(map(is_picture, kept)):
        return "image"
    return "text" if kept and not any(is_picture(one) or one.startswith("[") for one in kept) else "example"


def _locality(
    found: Locality, order: int, developed: Development | None, panel: Panel
) -> tuple[str, tuple[str, ...], Brief]:
    if not np.isfinite(found.ratio):
        return found.headline, (), Brief("classes cannot be compared")
    evidence = [found.evidence]
    if developed is not None:
        evidence.append(_developed(developed, order, panel, told=found.verdict == "local"))
    value = found.further()
    return found.headline, tuple(evidence), Brief(f"{times(*value)}, {found.verdict}", value)


def _developed(found: Development, order: int, panel: Panel, *, told: bool) -> str:
    steps, known = panel.steps, np.flatnonzero(np.isfinite(found.ratio))
    if not len(known):
        return ""
    first, last = known[0], known[-1]
    curve = times_of(found.ratio, order)
    text = f"Over training: {times(float(curve[first]))} at step {steps[first]}"
    text += f", {times(float(curve[last]))} at step {steps[last]}"
    if len(known) < FEWEST:
        return f"{text}; {len(known)} probes are too few to say when it changed."
    half, late = half_life(steps, curve), float(np.median(last_quarter(curve[known])))
    if told and late > curve[first] and np.isfinite(half):
        text += f"; half of the way to its late level ({times(late)}) by step {half:.0f}"
    if told and np.isfinite(found.step):
        return f"{text}; change point between steps {found.step_low:.0f} and {found.step_high:.0f}."
    if told and found.steepest is not None:
        return f"{text}; steepest rise between steps {found.steepest[0]:.0f} and {found.steepest[1]:.0f}."
    return f"{text}."


def _contrast(found: Contrast, kind: Kind, panel: Panel) -> tuple[str, tuple[str, ...], Brief]:
    measure = "the change of the loss" if kind == "loss" else panel.measure
    apart = f"{number(found.difference)} ({number(found.low)} to {number(found.high)})"
    medians = f"{number(found.within)} within a class and {number(found.between)} between classes"
    if not np.isfinite(found.difference) and panel.listed is not None:
        headline, evidence = _influences(panel.listed)
        return headline, evidence, Brief(headline.rstrip("."))
    if not np.isfinite(found.difference):
        return f"The median of {measure} is {medians}.", (), Brief(f"median {medians}")
    evidence = (_tested(found),)
    if not found.found:
        headline = f"{NO_STRUCTURE}: the median of {measure} is {medians}, no further apart than by chance."
        return headline, evidence, Brief("no structure found")
    brief = Brief(f"within − between classes: {apart}")
    if kind == "loss":
        headline = (
            f"A step on one example lowers the loss of {percent(found.below_within)} of the other examples of its "
            f"class, and of {percent(found.below_between)} of the examples of other classes."
        )
        return headline, (f"The median change of the loss is {medians}; a difference of {apart}.", *evidence), brief
    balanced = f"With all pairs of classes weighted alike, they differ by {apart}."
    return f"The median of {measure} is {medians}.", (balanced, *evidence), brief


def _tested(found: Contrast) -> str:
    return f"With permuted class labels p {p_value(found.p_value, found.p_floor)}; intervals are 95 %."


def _change(run: Run, panel: Panel, pairs: Pairs) -> Front:
    """What rose and what fell, by the comparison's own statistics."""
    found = contrast(read_last(run, panel))
    medians = f"within a class it changes by {number(found.within)}, between classes by {number(found.between)}"
    evidence = f"Median over pairs: {medians}."
    if np.isfinite(found.difference):
        apart = f"{number(found.difference)} (95 % interval {number(found.low)} to {number(found.high)})"
        tested = f"permuted class labels, p {p_value(found.p_value, found.p_floor)}"
        clear = f"; {tested}" if found.found else f", not clearly different from 0 by both this interval and {tested}"
        evidence = f"{evidence} Within − between, averaged over pairs of classes: {apart}{clear}."
    headline = run.headline or f"{panel.measure.capitalize()} from before to after."
    named = NamedPairs() if run.changes is None else changed_pairs(run.changes, pairs)
    return Front("change", 1, headline, (evidence,), named, brief=Brief(run.brief))


def _influences(found: HelpersAndHarmers, noun: str = "example") -> tuple[str, tuple[str, ...]]:
    """How many steps help, and of a single target the strongest."""
    lowered, raised = found.counts.sum(1)
    share = percent(float(lowered / max(1, lowered + raised)))
    if found.counts.shape[1] > 1:
        return f"A step on one {noun} lowers the loss of a target in {share} of the {lowered + raised:,} pairs.", ()
    headline = f"Steps on {lowered:,} of {lowered + raised:,} {noun}s ({share}) lower the loss of the target."
    ends = []
    for end, verb in enumerate(("helped", "harmed")):
        row = found.rows[end, 0, 0] if found.rows.shape[1] else -1
        if row >= 0:
            name = f"#{found.sources.places[row]}"
            name = name if found.sources.classes is None else f"{shown(found.sources.classes[row])} · {name}"
            ends.append(f"It is {verb} most by a step on {name}: {number(float(found.values[end, 0, 0]))}.")
    return headline, tuple(ends)


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
