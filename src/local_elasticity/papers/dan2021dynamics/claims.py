"""What the paper says of classification (§1.3, §2, §2.1, §6), and what is compared, one number for every run.

Locality is the ratio `other/own`: the median of S_rel over pairs of different classes over that of pairs of one class,
self-pairs left out, all pairs pooled. Below 1 a step moves its own class more. "For all pairs" takes the largest of the
six ratios S(a, b) / S(a, a), a ≠ b, by class pair. Values are read at two moments (smallest test loss, end) of two arms
(the paper's epochs, its steps). The paper's sentences of §2.1 are about Definition 3, a mean with self-pairs; the same
by medians are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from local_elasticity.papers.experiment import Cell, Measured, Values
from local_elasticity.papers.smallest_effects import ANY_RATIO, CONSTANT, NEAR_ONE, SAME_NORMS
from local_elasticity.statistics.change_point import half_life
from local_elasticity.statistics.claims import Alternatives, Claim

SATURATED = 0.95
"""The share of its final value at which the accuracy counts as saturated."""

PROBES = {
    "Definition 2, SGD": ("sgd", "kl"),
    "√Definition 2, SGD": ("sgd", "root_kl"),
    "Definition 1, SGD": ("sgd", "l1"),
    "Definition 1 of logits, SGD": ("sgd", "logits"),
    "Definition 2, fresh Adam": ("adam", "kl"),
    "Definition 2 as released, fresh Adam": ("adam", "released_kl"),
    "Definition 1 as released, fresh Adam": ("adam", "released_l1"),
}
DEFINITION_2, ROOT, DEFINITION_1, LOGITS, _, RELEASED_2, RELEASED_1 = PROBES
ARMS, MOMENTS, POINTS = ("epochs", "steps"), ("best", "end"), ("training", "held out")
PLACES = [f"{arm}, {moment}" for arm in ARMS for moment in MOMENTS]
ENDS = [f"{arm}, end" for arm in ARMS]

OTHER_OVER_OWN, LARGEST, LARGEST_MEAN = "other/own", "largest pair", "largest pair, Definition 3"
OWN, OTHER = "own", "other"
OVER_FIRST, OVER_FIRST_MEAN = "over its first value", "over its first value, Definition 3"


@dataclass(frozen=True)
class Runs:
    """The runs of all seeds."""

    found: Sequence[Measured]

    @property
    def classes(self) -> Sequence[str]:
        return list(self.found[0]["classes"])

    @property
    def steps(self) -> np.ndarray:
        return np.array(self.found[0]["steps"])

    def curves(self, name: str) -> np.ndarray:
        """Loss or accuracy over time, [seeds, t]."""
        return np.array([one[name] for one in self.found], dtype=float)

    def values(self, step: str, measure: str, reduction: str, points: str = "training") -> np.ndarray:
        """[seeds, t] for `within` and `between`, [seeds, t, classes, classes] by pair of classes."""
        probes = [one["probes"][points][step]["similarity"][measure] for one in self.found]
        return np.array([probe[reduction] for probe in probes], dtype=float)

    def has(self, step: str, points: str) -> bool:
        return step in self.found[0]["probes"][points]

    def at(self, curves: np.ndarray, arm: str, moment: str) -> np.ndarray:
        """Each run's value at its moment of an arm, [seeds, ...]."""
        places = [one["moments"][arm][moment] for one in self.found]
        return np.stack([curve[place] for curve, place in zip(curves, places, strict=True)])


def cells(runs: Runs) -> list[Cell]:
    """All that claims are judged from, a number for every run."""
    return [
        Cell(row, column, None, tuple(map(float, values)), scale="log" if row.endswith(OTHER_OVER_OWN) else None)
        for row, column, values in _rows(runs)
    ]


def _rows(runs: Runs) -> Iterator[tuple[str, str, np.ndarray]]:
    for points in POINTS:
        for title, (step, measure) in PROBES.items():
            if runs.has(step, points):
                yield from _locality_rows(runs, title, step, measure, points)
    yield from _definition_3_rows(runs)
    for arm in ARMS:
        yield "half of the fall of other/own over 95 % of the final accuracy, steps", arm, _onset(runs, arm)
        for moment in MOMENTS:
            for name in ("test loss", "test accuracy"):
                yield name, f"{arm}, {moment}", runs.at(runs.curves(name), arm, moment)
    one, two = (runs.values("sgd", measure, "median apart") for measure in ("l1", "l2"))
    yield "largest relative difference of L1 and L2", "", np.nanmax(np.abs(one / two - 1), axis=(1, 2, 3))
    start = runs.values("adam", "released_kl", "mean")[:, 0]
    yield "released formula at the start, largest distance from 1", "", np.abs(start - 1).max((1, 2))


def _locality_rows(
    runs: Runs, title: str, step: str, measure: str, points: str
) -> Iterator[tuple[str, str, np.ndarray]]:
    own, other = (runs.values(step, measure, name, points) for name in ("within", "between"))
    tables = {
        LARGEST: runs.values(step, measure, "median apart", points),
        LARGEST_MEAN: runs.values(step, measure, "mean", points),
    }
    for arm in ARMS:
        for moment in MOMENTS:
            column = f"{arm}, {moment}"
            yield named(title, OTHER_OVER_OWN, points), column, runs.at(other / own, arm, moment)
            for name, table in tables.items():
                yield named(title, name, points), column, largest_ratio(runs.at(table, arm, moment))
            for name, curves in ((OWN, own), (OTHER, other)):
                yield (
                    named(title, f"{name}, {OVER_FIRST}", points),
                    column,
                    runs.at(curves, arm, moment) / curves[:, 0],
                )


def _definition_3_rows(runs: Runs) -> Iterator[tuple[str, str, np.ndarray]]:
    """Intra- and inter-class values as printed, the means of k² pairs, at the end of an arm over those at the start."""
    tables = runs.values(*PROBES[DEFINITION_2], "mean")
    own = np.eye(tables.shape[-1], dtype=bool)
    for name, pairs in ((OWN, own), (OTHER, ~own)):
        curves = tables[:, :, pairs].mean(-1)
        for arm in ARMS:
            row = named(DEFINITION_2, f"{name}, {OVER_FIRST_MEAN}", "training")
            yield row, f"{arm}, end", runs.at(curves, arm, "end") / curves[:, 0]


def named(title: str, what: str, points: str) -> str:
    return f"{title}, {points} points: {what}"


def largest_ratio(tables: np.ndarray) -> np.ndarray:
    """max over classes a ≠ b of S(a, b)/S(a, a), [seeds].

    >>> largest_ratio(np.array([[[2.0, 1.0], [3.0, 4.0]]]))
    array([0.75])
    """
    own = np.diagonal(tables, axis1=1, axis2=2)
    ratios = tables / own[:, :, None]
    others = ~np.eye(tables.shape[-1], dtype=bool)
    return np.asarray(ratios[:, others].max(1))


def _onset(runs: Runs, arm: str) -> np.ndarray:
    """Steps until half of the fall of other/own is done, over steps until the accuracy is saturated. A ratio that does
    not fall has not set in by the end of the arm."""
    own, other = (runs.values("sgd", "kl", name) for name in ("within", "between"))
    found = []
    for run, ratio, accuracy in zip(runs.found, other / own, runs.curves("test accuracy"), strict=True):
        until = slice(run["moments"][arm]["end"] + 1)
        steps, ratio, accuracy = runs.steps[until], ratio[until], accuracy[until]
        saturated = steps[int((accuracy >= SATURATED * accuracy[-1]).argmax())]
        local = half_life(steps, ratio) if ratio[-1] < ratio[0] else steps[-1]
        found.append(local / max(saturated, 1))
    return np.array(found)


def _at(title: str, what: str, points: str = "training", places: Sequence[str] = PLACES) -> Mapping[str, str]:
    """Column → row of a claim's comparisons."""
    return dict.fromkeys(places, named(title, what, points))


def _each(rows: Mapping[str, str]) -> Callable[[Values], Alternatives]:
    return lambda values: [{column: values.of(row, column) for column, row in rows.items()}]


def _sharper(first: str, second: str) -> Callable[[Values], Alternatives]:
    """That the first is local, and more so than the second: other/own below 1, and below the other's."""

    def measure(values: Values) -> Alternatives:
        found = {}
        for place in PLACES:
            one, two = (values.of(named(title, OTHER_OVER_OWN, "training"), place) for title in (first, second))
            found[f"{first}, {place}"] = one
            found[f"{first} over {second}, {place}"] = one / two
        return [found]

    return measure


def _below(
    name: str,
    sentence: str,
    place: str,
    statistic: str,
    measure: Callable[[Values], Alternatives],
    *,
    ours: bool = False,
    implies: tuple[str, ...] = (),
) -> Claim:
    return Claim(name, sentence, place, statistic, measure, ANY_RATIO, "below", "log", ours=ours, implies=implies)


INTRA = "For all pairs, the intra-class S_rel value is higher than the inter-class value"
POOLED = "S_rel, other classes over own class: medians of all pairs without self-pairs, both arms and moments"
PAIRS = "the largest of the six S(a, b)/S(a, a), medians without self-pairs, both arms and moments"
DEFINITION_3 = "the largest of the six S(a, b)/S(a, a), means with self-pairs (Definition 3), both arms and moments"
CONSTANT_SENTENCE = "The intra-class value remains relatively constant through the training process"
DECREASES = "The inter-class value progressively decreases as training progresses"
NOT_SEEN = "Such a separation is not seen for the original definition"
RELEASED = "The same, by the released formula and step"
BY_MEDIANS = "The same, by medians without self-pairs"
FIRST_TO_END = "median S_rel at the end of the arm over that before training"
FIRST_TO_END_MEAN = "mean S_rel with self-pairs (Definition 3) at the end of the arm over that before training"

CLAIMS = (
    _below("definition_3", INTRA, "§2.1", DEFINITION_3, _each(_at(DEFINITION_2, LARGEST_MEAN))),
    _below(
        "intra_larger",
        BY_MEDIANS,
        "§2.1",
        PAIRS,
        _each(_at(DEFINITION_2, LARGEST)),
        implies=("pooled",),
        ours=True,
    ),
    _below("pooled", "The same, all pairs pooled", "§2.1", POOLED, _each(_at(DEFINITION_2, OTHER_OVER_OWN)), ours=True),
    _below(
        "pooled_held_out",
        "The same, pooled, at points that were not trained on",
        "§2.1",
        POOLED,
        _each(_at(DEFINITION_2, OTHER_OVER_OWN, "held out")),
        ours=True,
    ),
    _below(
        "pooled_best",
        "The same, pooled, where the test loss is smallest",
        "§2.1",
        POOLED,
        _each(_at(DEFINITION_2, OTHER_OVER_OWN, places=[place for place in PLACES if "best" in place])),
        ours=True,
    ),
    _below("intra_larger_released", RELEASED, "§2.1", DEFINITION_3, _each(_at(RELEASED_2, LARGEST_MEAN)), ours=True),
    Claim(
        "intra_constant_definition_3",
        CONSTANT_SENTENCE,
        "§2.1",
        FIRST_TO_END_MEAN,
        _each(_at(DEFINITION_2, f"{OWN}, {OVER_FIRST_MEAN}", places=ENDS)),
        CONSTANT,
        "within",
        "log",
    ),
    Claim(
        "intra_constant",
        BY_MEDIANS,
        "§2.1",
        FIRST_TO_END,
        _each(_at(DEFINITION_2, f"{OWN}, {OVER_FIRST}", places=ENDS)),
        CONSTANT,
        "within",
        "log",
        ours=True,
    ),
    Claim(
        "intra_constant_released",
        RELEASED,
        "§2.1",
        FIRST_TO_END,
        _each(_at(RELEASED_2, f"{OWN}, {OVER_FIRST}", places=ENDS)),
        CONSTANT,
        "within",
        "log",
        ours=True,
    ),
    _below(
        "inter_decreases_definition_3",
        DECREASES,
        "§2.1",
        FIRST_TO_END_MEAN,
        _each(_at(DEFINITION_2, f"{OTHER}, {OVER_FIRST_MEAN}", places=ENDS)),
    ),
    _below(
        "inter_decreases",
        BY_MEDIANS,
        "§2.1",
        FIRST_TO_END,
        _each(_at(DEFINITION_2, f"{OTHER}, {OVER_FIRST}", places=ENDS)),
        ours=True,
    ),
    _below(
        "inter_decreases_released",
        RELEASED,
        "§2.1",
        FIRST_TO_END,
        _each(_at(RELEASED_2, f"{OTHER}, {OVER_FIRST}", places=ENDS)),
        ours=True,
    ),
    Claim("not_by_definition_1", NOT_SEEN, "§2.1", PAIRS, _each(_at(DEFINITION_1, LARGEST)), ANY_RATIO, scale="log"),
    Claim(
        "not_by_definition_1_released",
        RELEASED,
        "§2.1",
        PAIRS,
        _each(_at(RELEASED_1, LARGEST)),
        ANY_RATIO,
        scale="log",
        ours=True,
    ),
    _below(
        "sharper",
        "The new definition detects the property of the updates more sharply (KL is quadratic: its root is compared)",
        "abstract, §2.1",
        "other/own of √Definition 2, and the same over other/own of Definition 1",
        _sharper(ROOT, DEFINITION_1),
    ),
    _below(
        "softmax_better",
        "Definition 1 of the output composed with a softmax layer performs better than of the output",
        "§2",
        "other/own of Definition 1 after the softmax, and the same over other/own of the logits",
        _sharper(DEFINITION_1, LOGITS),
    ),
    Claim(
        "norms_alike",
        "Definition 1 in the L1 and the L2 norm: the results were essentially indistinguishable",
        "§2",
        "the largest relative difference over pairs and times",
        _each({"": "largest relative difference of L1 and L2"}),
        SAME_NORMS,
        "below",
        "log",
    ),
    _below(
        "early",
        "This preference sets in very early on in the training, much before the asymptotic classification accuracy",
        "§6",
        "steps until half of the fall of other/own, over steps until 95 % of the final test accuracy",
        _each(dict.fromkeys(ARMS, "half of the fall of other/own over 95 % of the final accuracy, steps")),
    ),
    Claim(
        "starts_at_one",
        "By the released formula all pairs begin at about 1.00, as the figures show",
        "Figs. 1, 2, 14",
        "the largest distance from 1 over pairs, before training",
        _each({"": "released formula at the start, largest distance from 1"}),
        NEAR_ONE,
        "below",
        "log",
        ours=True,
    ),
)
