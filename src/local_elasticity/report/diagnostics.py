"""Whether to believe the numbers: what was unresolved, how small the denominators were, how far above the noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from local_elasticity.engine.nonlinearity import LARGE
from local_elasticity.measures.registry import is_ratio, order_of
from local_elasticity.report.run import Panel, Run
from local_elasticity.words import number, percent, times

Level = Literal["good", "careful", "bad", "unknown"]

UNRESOLVED_CAREFUL_SHARE, UNRESOLVED_BAD_SHARE = 0.01, 0.2
"""Shares of unresolved pairs from which on to be careful, and not to believe a summary."""

EXTREME_TIMES_MEDIAN = 100
"""A similarity so many times the median is extreme: it rules any mean."""

MANY_EXTREMES_SHARE = 0.05
"""A share of extreme pairs that is no longer a few."""

SMALL_DENOMINATOR_SHARE = 0.01
"""A denominator below this share of the median one is called small, both as how far: of kl the root."""

SELF_DEVIATION = 0.01
"""By how much an example may differ from 1 with itself."""

LARGE_ROWS_TIMES = 2
"""Rows whose median is so many times that of the others are called large."""

SAME_CONCLUSION = 1.1
"""Two numbers of times as far that differ by less than this factor support the same conclusion."""


SAME_MARGIN = 1e-3
"""Margins above the noise that differ by less than this share are one number: the noise is a share of the change."""

TOO_SMALL = (
    "the steps moved predictions by less than rounding does. Take a larger step, float64, or a network that is not yet "
    "perfect on these examples"
)
"""Why nothing was resolved, where no other cause is known."""


@dataclass(frozen=True)
class Finding:
    """One thing to know before believing a number."""

    level: Level
    title: str
    words: str


def examine(run: Run, panel: Panel) -> list[Finding]:
    """All findings of one measure, at its last time where it has several."""
    always = [_unresolved(run, panel), _denominators(run, panel), _noise(panel), _extremes(panel)]
    return [*always, *_step(run), *_itself(run, panel)]


def _unresolved(run: Run, panel: Panel) -> Finding:
    known = np.isfinite(panel.values)
    if run.kind == "comparison" and run.square and not known[:, *np.diag_indices(known.shape[1])].any():
        known = known[:, ~np.eye(known.shape[1], dtype=bool)][:, None]  # le.compare leaves out an example with itself
    shares = 1 - known.mean((1, 2)) if known.size else np.ones(1)
    share, worst = float(shares[-1]), float(shares.max())
    over_time = f" At the worst of {len(shares)} times it was {percent(worst)}." if worst > share else ""
    if share == 1:
        return Finding(
            "bad",
            "Nothing was resolved",
            f"No pair has a value: {run.about.get('cause') or TOO_SMALL}." + over_time,
        )
    if share == 0:
        return Finding("good", "Every pair was resolved", "No pair is hidden by rounding." + over_time)
    level: Level = "careful" if share < UNRESOLVED_BAD_SHARE else "bad"
    level = "good" if share < UNRESOLVED_CAREFUL_SHARE else level
    return Finding(
        level,
        f"{percent(share)} of the pairs are unresolved",
        "Their source moved by less than what rounding would do, so they have no value (grey in the matrix) and "
        "summaries leave them out." + over_time,
    )


def _denominators(run: Run, panel: Panel) -> Finding:
    """How far sources move themselves, and whether the conclusion rests on those that hardly do."""
    if not is_ratio(panel.measure):
        return Finding("good", "No denominators", f"{panel.measure} has no denominator.")
    if panel.own is None or not (panel.own[np.isfinite(panel.own)] > 0).any():
        return Finding("unknown", "Denominators were not kept", "Histories of earlier versions do not have them.")
    far = np.abs(panel.own) ** (1 / order_of(panel.measure))
    known = far[np.isfinite(far) & (far > 0)]
    small = far < SMALL_DENOMINATOR_SHARE * np.median(known)
    divided = "Each number is divided by how far its source moved itself. "
    if not small.any():
        least = percent(float(known.min() / np.median(known)))
        return Finding(
            "good",
            "No denominator is small",
            f"{divided}The source that moved least moved {least} as far as the median source.",
        )
    share = percent(float(small.mean()))
    words = f"{divided}{share} of the sources moved less than {percent(SMALL_DENOMINATOR_SHARE)} of the median source. "
    harmless, told = _without(run, panel, small)
    title = "Some denominators are small" + (", which does not change the conclusion" if harmless else "")
    return Finding("good" if harmless else "careful", title, words + told)


def _without(run: Run, panel: Panel, small: np.ndarray) -> tuple[bool, str]:
    """Whether the conclusion is the same without the sources of small denominators: of classes where there are some,
    and else whether their rows are larger."""
    order = order_of(panel.measure)
    theirs, others = (_median(np.abs(panel.values[-1][rows])) ** (1 / order) for rows in (small, ~small))
    if not np.isfinite(theirs):
        return True, "None of their pairs was resolved, so they enter no median."
    if theirs <= LARGE_ROWS_TIMES * others:
        rows = f"{percent(theirs)} in the median, others {percent(others)}"
        return True, f"Their rows are not larger ({rows}), so this is harmless."
    larger = f"Their rows are larger ({percent(theirs)} in the median, others {percent(others)})"
    far = [_times(run, panel, rows) for rows in (np.ones(len(small), dtype=bool), ~small)]
    if any(one is None or not np.isfinite(one) for one in far):
        return False, f"{larger}. Medians limit their weight, means would not: trust medians alone."
    whole, rest = (times(float(one)) for one in far if one is not None)
    same = abs(np.log(float(far[1] or 1) / float(far[0] or 1))) < np.log(SAME_CONCLUSION)
    compared = f"Without them a step moves its own class {rest} as far as other classes, with them {whole}"
    meant = "the conclusion does not rest on them" if same else "the conclusion depends on them"
    return same, f"{larger}. {compared}: {meant}."


def _times(run: Run, panel: Panel, chosen: np.ndarray) -> float | None:
    """How many times as far some sources move their own class; None where there are no two classes."""
    if run.classes is None or len(run.classes) < 2 or run.sources.classes is None or run.targets.classes is None:
        return None
    values = np.array(panel.values[-1], dtype=float)
    if run.square:
        np.fill_diagonal(values, np.nan)
    same = np.asarray(run.sources.classes)[:, None] == np.asarray(run.targets.classes)
    within, between = (_median(values[chosen][pairs[chosen]]) for pairs in (same, ~same))
    return (within / between) ** (1 / order_of(panel.measure)) if within > 0 and between > 0 else None


def _median(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else float("nan")


def _noise(panel: Panel) -> Finding:
    if panel.own is None or panel.floor is None or not np.isfinite(panel.own / panel.floor).any():
        return Finding("unknown", "The noise floor was not kept", "Pairs below it were left out all the same.")
    margin = panel.own / panel.floor
    margin = margin[np.isfinite(margin)]
    words = (
        "The noise floor is what rounding alone could change. The median source changes by "
        f"{number(float(np.median(margin)))} times that, the closest by {number(float(margin.min()))} times."
    )
    if float(margin.min()) < 1:
        share = percent(float((margin < 1).mean()))
        return Finding("careful", f"{share} of the sources are below the noise floor", words)
    if len(margin) > 2 and np.ptp(margin) < SAME_MARGIN * margin.min():
        words = (
            "Changes were computed without subtracting predictions, so rounding is a fixed share of each change, and "
            "no source can be too small for it."
        )
        return Finding("good", "No change is hidden by rounding", words)
    return Finding("good", "All sources are above the noise floor", words)


def _extremes(panel: Panel) -> Finding:
    known = np.abs(panel.values[-1][np.isfinite(panel.values[-1])]) if panel.values.size else np.array([])
    known = known ** (1 / order_of(panel.measure)) if is_ratio(panel.measure) else known
    if not known.size or np.median(known) == 0:
        return Finding("unknown", "Extremes", "There is nothing to compare them with.")
    over = float(known.max() / np.median(known))
    largest = percent(float(known.max())) if is_ratio(panel.measure) else number(float(known.max()))
    words = f"The largest value is {largest}, {number(over)} times the median."
    if over <= EXTREME_TIMES_MEDIAN:
        return Finding("good", "No pair is extreme", words)
    share = float((known > EXTREME_TIMES_MEDIAN * np.median(known)).mean())
    words += f" {percent(share)} of the pairs are over {EXTREME_TIMES_MEDIAN:g} times the median."
    if share > MANY_EXTREMES_SHARE:
        return Finding("careful", "Many pairs are extreme", f"{words} Medians and means differ widely: name which.")
    words += " They would dominate a mean. All conclusions here are of medians, which so few pairs do not move."
    return Finding("good", "A few pairs are extreme, which does not change the conclusion", words)


def _step(run: Run) -> list[Finding]:
    """How far the step is from its limit of small steps, where that is known."""
    known = run.state.get("nonlinearity", np.array([run.about.get("nonlinearity", np.nan)], dtype=float))
    known = known[np.isfinite(known)]
    if not len(known):
        return []
    last, most = float(known[-1]), float(known.max())
    words = f"Changes deviate by {percent(last)} from those of an infinitely small step (‖R − JΔ‖ / ‖JΔ‖)."
    words += f" At the worst of {len(known)} times it was {percent(most)}." if most > last else ""
    if most > LARGE:
        return [Finding("careful", "The step is large", words + " A smaller step shows the local effect alone.")]
    return [Finding("good", "The step is small", words)]


def _itself(run: Run, panel: Panel) -> list[Finding]:
    if not run.square or not is_ratio(panel.measure) or not panel.values.size:
        return []
    own = panel.values[-1].diagonal()
    off = np.abs(own[np.isfinite(own)] - 1)
    if not off.size:
        return []
    words = f"An example with itself must have 1; the largest deviation is {number(float(off.max()))}."
    if off.max() < SELF_DEVIATION:
        return [Finding("good", "The diagonal is 1", words)]
    return [Finding("bad", "The diagonal is not 1", words + " Something is wrong here.")]
