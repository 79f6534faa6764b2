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
from local_elasticity.statistics.development import Development, development, since
from local_elasticity.statistics.locality import LOCAL, NO_STRUCTURE, Locality, locality, quartiles
from local_elasticity.statistics.locality import times as times_of
from local_elasticity.words import number, p_value, percent, times

UNRESOLVED = "no pair resolved"
"""The number in a list of runs, where there is none."""

OTHERS_NAMED = 2
"""Other measures that a sentence names."""


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
    when: str = ""
    """When learning became local, in few words."""
    more: tuple[str, ...] = ()
    """What else is told below the first screen."""


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
        found = [replace(one, evidence=(*one.evidence, *_other_times(one, ratios[0], found))) for one in found]
    found = [replace(one, evidence=(*one.evidence, *_covered(run, one))) for one in found]
    return [replace(one, evidence=(*one.evidence, run.drawn)) if run.drawn else one for one in found]


def _other_times(front: Front, names: Sequence[str], fronts: Sequence[Front]) -> tuple[str, ...]:
    """When learning became local by other measures of the run, where they say something else."""
    others = {name: one.when for name, one in zip(names, fronts, strict=True) if one.when not in ("", front.when)}
    if not front.when or not others:
        return ()
    return (" ".join(f"By {name}: {when}." for name, when in list(others.items())[:OTHERS_NAMED]),)


def _covered(run: Run, front: Front) -> tuple[str, ...]:
    """What intervals do not cover."""
    if front.kind == "unknown" or front.brief.words in ("", UNRESOLVED):
        return ()
    several = "these are two models" if run.kind == "comparison" else "this is one network"
    return (f"Intervals cover the choice of examples, not other seeds: {several}.",)


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
        return Front(kind, order, words, brief=Brief(UNRESOLVED))
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
        named = coupled_pairs(found, panel, pairs, kind, order, read)
    if kind != "ratio":
        headline, evidence, brief = _contrast(contrast(read), kind, panel)
        return Front(kind, order, _at_last(headline, panel), evidence, named, None, brief, found)
    local = locality(read, measure=panel.measure)
    developed = None
    if len(panel.steps) > 1:
        developed = development(panel.steps, pairs.ratio, panel.values, *read[1:3], square=run.square)
    headline, evidence, brief = _locality(local)
    curve = _curve(developed, local)
    when, told, more = "", "", ""
    if curve is not None and developed is not None:
        when = _when(curve, panel.steps) if local.verdict == "local" else ""
        told, more = _developed(curve, when, panel), _half(curve, panel.steps) if when else ""
    moved = _moved(pairs, order, panel) if brief.times is not None else ""
    evidence = tuple(filter(None, (*evidence, told, moved)))
    headline = _at_last(headline, panel)
    return Front(kind, order, headline, evidence, named, curve, brief, found, when, tuple(filter(None, (more,))))


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
        return "No pair of two different examples could be resolved.", (), Brief(UNRESOLVED)
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


def _locality(found: Locality) -> tuple[str, tuple[str, ...], Brief]:
    if not np.isfinite(found.ratio):
        return found.headline, (), Brief("classes cannot be compared")
    value = found.further()
    return found.headline, (found.evidence,), Brief(f"{times(*value)}, {found.verdict}", value)


def _moved(pairs: Pairs, order: int, panel: Panel) -> str:
    """How far the own class and other classes move: over training, which of the two changed."""
    known = np.flatnonzero(np.isfinite(pairs.within) & np.isfinite(pairs.between))
    if not len(known):
        return ""
    ends = [known[-1]] if len(known) == 1 else [known[0], known[-1]]
    own, other = (
        " → ".join(amount(float(values[at]), "ratio", order) for at in ends) for values in (pairs.within, pairs.between)
    )
    over = f"From step {panel.steps[ends[0]]} to {panel.steps[ends[-1]]}, own class" if len(ends) > 1 else "Own class"
    return f"{over}: {own} of how far the source itself moves; other classes: {other}."


def _when(curve: dict[str, Any], steps: Sequence[int]) -> str:
    """From which step on learning was clearly local, and the change point.

    >>> curve = {"times": np.ones(5), "low": np.array([1, 1, 1.2, 2, 2]), "change": [20.0, 30.0], "steepest": None}
    >>> _when(curve, [0, 10, 20, 30, 40])
    'clearly above 1.25× from step 30 on; change point between steps 20 and 30'
    """
    if np.isfinite(curve["times"]).sum() < FEWEST:
        return ""
    first = since(steps, curve["low"], LOCAL)
    parts = []
    if np.isfinite(first):
        parts.append(f"clearly above {LOCAL:g}× from step {first:.0f} on")
    for name, mark in (("change point", curve["change"]), ("steepest rise", curve["steepest"])):
        if mark is not None:
            parts.append(f"{name} between steps {mark[0]:.0f} and {mark[1]:.0f}")
            break
    return "; ".join(parts)


def _developed(curve: dict[str, Any], when: str, panel: Panel) -> str:
    steps, known = panel.steps, np.flatnonzero(np.isfinite(curve["times"]))
    if not len(known):
        return ""
    first, last = known[0], known[-1]
    ends = f"{times(float(curve['times'][first]))} at step {steps[first]}"
    ends += f", {times(float(curve['times'][last]))} at step {steps[last]}"
    if len(known) < FEWEST:
        return f"Over training: {ends}; {len(known)} probes are too few to say when it changed."
    fitted = " (where two levels fit best)" * ("change point" in when)
    return f"Over training: {when}{fitted}; {ends}." if when else f"Over training: {ends}."


def _half(curve: dict[str, Any], steps: Sequence[int]) -> str:
    """When half of the rise had happened, and what is called its end."""
    known = curve["times"][np.isfinite(curve["times"])]
    half, late = half_life(steps, curve["times"]), float(np.median(last_quarter(known)))
    if not np.isfinite(half) or late <= known[0]:
        return ""
    return (
        f"Half of the rise to the late level ({times(late)}, the median of the last quarter of the probes) had "
        f"happened by step {half:.0f}."
    )


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


def _curve(found: Development | None, local: Locality) -> dict[str, Any] | None:
    """How many times as far at every step; at the last step with the interval that the headline has."""
    if found is None:
        return None
    curve, low, high = (times_of(one, local.order) for one in (found.ratio, found.high, found.low))
    value, *ends = local.further()
    if np.isclose(value, curve[-1]) and np.isfinite(ends).all():
        low[-1], high[-1] = ends
    change = None if np.isnan(found.step) else [found.step_low, found.step_high]
    return {"times": curve, "low": low, "high": high, "change": change, "steepest": found.steepest}
