"""What the paper says of classification (§1.3, §2, §2.1, §6), and what is compared, one number for every run.

Locality is the ratio `other/own`: the median of S_rel over pairs of different classes over that of pairs of one class,
self-pairs left out, all pairs pooled. Below 1 a step moves its own class more. "For all pairs" compares each of the six
ratios S(a, b) / S(a, a), a ≠ b, with 1: the largest of six noisy ratios would be above 1 where all true ones are 1.
Values are read at two moments (smallest test loss, end) of the arms that are in the paper's setting: its epochs, and
its steps where the files hold fewer images. The paper averages by Definition 3, a mean with self-pairs, also for
Definition 1, and its sentences are judged by that mean; the same by medians without self-pairs are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from local_elasticity.papers.experiment import Cell, Measured, Values
from local_elasticity.papers.smallest_effects import ANY_RATIO, CONSTANT, MUCH_BEFORE, NEAR_ONE, SAME_NORMS
from local_elasticity.statistics.change_point import half_life
from local_elasticity.statistics.claims import Alternatives, Claim, Effect, NotMeasuredError

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

OTHER_OVER_OWN, OVER_OWN = "other/own", "/S("
OTHER_OVER_OWN_MEAN = f"Definition 3, {OTHER_OVER_OWN}"
OWN, OTHER = "own", "other"
MEDIANS, DEFINITION_3 = "median apart", "mean"
"""Reductions of pairs, as units hold them."""

PAIRED = (
    (DEFINITION_2, MEDIANS, "training"),
    (DEFINITION_2, MEDIANS, "held out"),
    (DEFINITION_2, DEFINITION_3, "training"),
    (DEFINITION_1, DEFINITION_3, "training"),
    (DEFINITION_1, MEDIANS, "training"),
    (RELEASED_2, DEFINITION_3, "training"),
    (RELEASED_1, MEDIANS, "training"),
)
"""What is read by pair of classes."""

OVER_FIRST, OVER_FIRST_MEAN = "over its first value", "over its first value, Definition 3"

ONSET = "half of the fall of other/own over 95 % of the final accuracy, steps"
NORMS = "largest relative difference of L1 and L2 from the start to the end of the arm"
BY = {DEFINITION_3: ", Definition 3", MEDIANS: ""}
"""How rows of a reduction end."""


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

    def pooled(
        self, step: str, measure: str, reduction: str, points: str = "training"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Own class and other classes, each [seeds, t]: medians over all pairs without self-pairs, or the means of
        Definition 3 averaged over pairs of classes."""
        if reduction == MEDIANS:
            return self.values(step, measure, "within", points), self.values(step, measure, "between", points)
        tables = self.values(step, measure, reduction, points)
        own = np.eye(tables.shape[-1], dtype=bool)
        return tables[:, :, own].mean(-1), tables[:, :, ~own].mean(-1)

    def has(self, step: str, points: str) -> bool:
        return step in self.found[0]["probes"][points]

    def at(self, curves: np.ndarray, arm: str, moment: str) -> np.ndarray:
        """Each run's value at its moment of an arm, [seeds, ...]."""
        places = [one["moments"][arm][moment] for one in self.found]
        return np.stack([curve[place] for curve, place in zip(curves, places, strict=True)])


def cells(runs: Runs) -> list[Cell]:
    """All that claims are judged from, a number for every run."""
    return [
        Cell(row, column, None, tuple(map(float, values)), scale="log" if _is_ratio(row) else None)
        for row, column, values in _rows(runs)
    ]


def _is_ratio(row: str) -> bool:
    return row.endswith(OTHER_OVER_OWN) or OVER_OWN in row


def _rows(runs: Runs) -> Iterator[tuple[str, str, np.ndarray]]:
    for points in POINTS:
        for title, (step, measure) in PROBES.items():
            if runs.has(step, points):
                yield from _locality_rows(runs, title, step, measure, points)
    for title, reduction, points in PAIRED:
        yield from _pair_rows(runs, title, reduction, points)
    yield from _definition_3_rows(runs)
    for arm in ARMS:
        for reduction, by in BY.items():
            yield f"{ONSET}{by}", arm, _onset(runs, arm, reduction)
            yield f"{NORMS}{by}", arm, _norms_apart(runs, arm, reduction)
        for moment in MOMENTS:
            for name in ("test loss", "test accuracy"):
                yield name, f"{arm}, {moment}", runs.at(runs.curves(name), arm, moment)
    start = runs.values("adam", "released_kl", "mean")[:, 0]
    yield "released formula at the start, largest distance from 1", "", np.abs(start - 1).max((1, 2))


def _locality_rows(
    runs: Runs, title: str, step: str, measure: str, points: str
) -> Iterator[tuple[str, str, np.ndarray]]:
    own, other = runs.pooled(step, measure, MEDIANS, points)
    for arm in ARMS:
        for moment in MOMENTS:
            column = f"{arm}, {moment}"
            yield named(title, OTHER_OVER_OWN, points), column, runs.at(other / own, arm, moment)
            for name, curves in ((OWN, own), (OTHER, other)):
                yield (
                    named(title, f"{name}, {OVER_FIRST}", points),
                    column,
                    runs.at(curves, arm, moment) / curves[:, 0],
                )


def _pair_rows(runs: Runs, title: str, reduction: str, points: str) -> Iterator[tuple[str, str, np.ndarray]]:
    """S(a, b)/S(a, a) of every two classes: how far the other moves beside a's own."""
    tables = runs.values(*PROBES[title], reduction, points)
    for i, a in enumerate(runs.classes):
        for j, b in enumerate(runs.classes):
            for arm in ARMS if i != j else ():
                for moment in MOMENTS:
                    found = runs.at(tables, arm, moment)
                    row = f"{_of_pairs(title, reduction, points)}{a}, {b}){OVER_OWN}{a}, {a})"
                    yield row, f"{arm}, {moment}", found[:, i, j] / found[:, i, i]


def _of_pairs(title: str, reduction: str, points: str) -> str:
    """How the rows of pairs of classes begin."""
    return named(title, f"{'Definition 3, ' if reduction == DEFINITION_3 else ''}S(", points)


def _definition_3_rows(runs: Runs) -> Iterator[tuple[str, str, np.ndarray]]:
    """Intra- and inter-class values as printed, the means of k² pairs: at the end of an arm over those at the start,
    and inter over intra at each moment."""
    for name, curves in zip((OWN, OTHER), runs.pooled(*PROBES[DEFINITION_2], DEFINITION_3), strict=True):
        for arm in ARMS:
            row = named(DEFINITION_2, f"{name}, {OVER_FIRST_MEAN}", "training")
            yield row, f"{arm}, end", runs.at(curves, arm, "end") / curves[:, 0]
    for title in (ROOT, DEFINITION_1, LOGITS):
        own, other = runs.pooled(*PROBES[title], DEFINITION_3)
        for arm in ARMS:
            for moment in MOMENTS:
                row = named(title, OTHER_OVER_OWN_MEAN, "training")
                yield row, f"{arm}, {moment}", runs.at(other / own, arm, moment)


def named(title: str, what: str, points: str) -> str:
    return f"{title}, {points} points: {what}"


def _norms_apart(runs: Runs, arm: str, reduction: str) -> np.ndarray:
    """The largest relative difference over pairs of classes, and over times from the start to the end of the arm."""
    one, two = (runs.values("sgd", measure, reduction) for measure in ("l1", "l2"))
    apart = np.nanmax(np.abs(one / two - 1), axis=(2, 3))
    return np.array(
        [np.nanmax(curve[: run["moments"][arm]["end"] + 1]) for run, curve in zip(runs.found, apart, strict=True)]
    )


def _onset(runs: Runs, arm: str, reduction: str) -> np.ndarray:
    """Steps until half of the fall of other/own is done, over steps until the accuracy is saturated. A ratio that does
    not fall has not set in by the end of the arm."""
    own, other = runs.pooled(*PROBES[DEFINITION_2], reduction)
    found = []
    for run, ratio, accuracy in zip(runs.found, other / own, runs.curves("test accuracy"), strict=True):
        until = slice(run["moments"][arm]["end"] + 1)
        steps, ratio, accuracy = runs.steps[until], ratio[until], accuracy[until]
        saturated = steps[int((accuracy >= SATURATED * accuracy[-1]).argmax())]
        local = half_life(steps, ratio) if ratio[-1] < ratio[0] else steps[-1]
        found.append(local / max(saturated, 1))
    return np.array(found)


def _at(title: str, what: str, places: Sequence[str], points: str = "training") -> Mapping[str, str]:
    """Column → row of a claim's comparisons."""
    return dict.fromkeys(places, named(title, what, points))


def _each(rows: Mapping[str, str]) -> Callable[[Values], Alternatives]:
    return lambda values: [{column: values.of(row, column) for column, row in rows.items()}]


def all_pairs(title: str, reduction: str, places: Sequence[str]) -> Callable[[Values], Alternatives]:
    """That every pair of classes has it, at every place."""
    return lambda values: [
        {
            f"{pair}, {place}": units
            for pair, by_place in _by_pair(values, title, reduction, places).items()
            for place, units in by_place.items()
        }
    ]


def some_pair(title: str, reduction: str, places: Sequence[str]) -> Callable[[Values], Alternatives]:
    """That some pair of classes has it at every place, each pair being a case of its own."""
    return lambda values: [
        {f"{pair}, {place}": units for place, units in by_place.items()}
        for pair, by_place in _by_pair(values, title, reduction, places).items()
    ]


def _by_pair(
    values: Values, title: str, reduction: str, places: Sequence[str]
) -> Mapping[str, Mapping[str, np.ndarray]]:
    start = _of_pairs(title, reduction, "training")
    rows = dict.fromkeys(row for row, _ in values.cells if row.startswith(start) and OVER_OWN in row)
    if not rows:
        raise NotMeasuredError(f"{start}…: the result holds no values by pair; run the experiment again")
    return {f"S({row.removeprefix(start)}": {place: values.of(row, place) for place in places} for row in rows}


def _sharper(first: str, second: str, places: Sequence[str]) -> Callable[[Values], Alternatives]:
    """That the first is local, and more so than the second: other/own below 1, and below the other's."""

    def measure(values: Values) -> Alternatives:
        found = {}
        for place in places:
            one, two = (values.of(named(title, OTHER_OVER_OWN_MEAN, "training"), place) for title in (first, second))
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
    effect: Effect = ANY_RATIO,
    ours: bool = False,
    implies: tuple[str, ...] = (),
) -> Claim:
    return Claim(name, sentence, place, statistic, measure, effect, "below", "log", ours=ours, implies=implies)


INTRA = "For all pairs, the intra-class S_rel value is higher than the inter-class value"
POOLED = "S_rel, other classes over own class: medians of all pairs without self-pairs"
PAIRS = "S(a, b)/S(a, a) of each of the six pairs, medians without self-pairs"
MEANS = "S(a, b)/S(a, a) of each of the six pairs, means with self-pairs (Definition 3)"
MEANS_OF_PAIRS = "means over pairs of classes, each a mean with self-pairs (Definition 3)"
CONSTANT_SENTENCE = "The intra-class value remains relatively constant through the training process"
DECREASES = "The inter-class value progressively decreases as training progresses"
REVERSED = "some pair is reversed, the same at every moment"
NOT_SEEN = "Such a separation is not seen for the original definition"
RELEASED = "The same, by the released formula and step"
RELEASED_BY_MEDIANS = "The same by medians, by the released formula and step"
BY_MEDIANS = "The same, by medians without self-pairs"
FIRST_TO_END = "median S_rel at the end of the arm over that before training"
FIRST_TO_END_MEAN = "mean S_rel with self-pairs (Definition 3) at the end of the arm over that before training"


def claims_of(arms: Sequence[str]) -> tuple[Claim, ...]:
    """The sentences, judged at both moments of these arms."""
    places, ends = [f"{arm}, {moment}" for arm in arms for moment in MOMENTS], [f"{arm}, end" for arm in arms]
    return (
        _below("definition_3", INTRA, "§2.1", MEANS, all_pairs(DEFINITION_2, DEFINITION_3, places)),
        _below(
            "intra_larger",
            BY_MEDIANS,
            "§2.1",
            PAIRS,
            all_pairs(DEFINITION_2, MEDIANS, places),
            ours=True,
        ),
        _below(
            "pooled",
            "The intra-class S_rel value is higher than the inter-class value, all pairs pooled",
            "§2.1",
            POOLED,
            _each(_at(DEFINITION_2, OTHER_OVER_OWN, places)),
            ours=True,
        ),
        _below(
            "pooled_held_out",
            "The same, pooled, at points that were not trained on",
            "§2.1",
            POOLED,
            _each(_at(DEFINITION_2, OTHER_OVER_OWN, places, "held out")),
            ours=True,
        ),
        _below(
            "pooled_best",
            "The same, pooled, where the test loss is smallest",
            "§2.1",
            POOLED,
            _each(_at(DEFINITION_2, OTHER_OVER_OWN, [place for place in places if "best" in place])),
            ours=True,
        ),
        _below(
            "intra_larger_released",
            RELEASED,
            "§2.1",
            MEANS,
            all_pairs(RELEASED_2, DEFINITION_3, places),
            ours=True,
        ),
        Claim(
            "intra_constant_definition_3",
            CONSTANT_SENTENCE,
            "§2.1",
            FIRST_TO_END_MEAN,
            _each(_at(DEFINITION_2, f"{OWN}, {OVER_FIRST_MEAN}", ends)),
            CONSTANT,
            "within",
            "log",
        ),
        Claim(
            "intra_constant",
            BY_MEDIANS,
            "§2.1",
            FIRST_TO_END,
            _each(_at(DEFINITION_2, f"{OWN}, {OVER_FIRST}", ends)),
            CONSTANT,
            "within",
            "log",
            ours=True,
        ),
        Claim(
            "intra_constant_released",
            RELEASED_BY_MEDIANS,
            "§2.1",
            FIRST_TO_END,
            _each(_at(RELEASED_2, f"{OWN}, {OVER_FIRST}", ends)),
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
            _each(_at(DEFINITION_2, f"{OTHER}, {OVER_FIRST_MEAN}", ends)),
        ),
        _below(
            "inter_decreases",
            BY_MEDIANS,
            "§2.1",
            FIRST_TO_END,
            _each(_at(DEFINITION_2, f"{OTHER}, {OVER_FIRST}", ends)),
            ours=True,
        ),
        _below(
            "inter_decreases_released",
            RELEASED_BY_MEDIANS,
            "§2.1",
            FIRST_TO_END,
            _each(_at(RELEASED_2, f"{OTHER}, {OVER_FIRST}", ends)),
            ours=True,
        ),
        Claim(
            "not_by_definition_1",
            NOT_SEEN,
            "§2.1",
            f"{MEANS}: {REVERSED}",
            some_pair(DEFINITION_1, DEFINITION_3, places),
            ANY_RATIO,
            scale="log",
        ),
        Claim(
            "not_by_definition_1_released",
            RELEASED_BY_MEDIANS,
            "§2.1",
            f"{PAIRS}: {REVERSED}",
            some_pair(RELEASED_1, MEDIANS, places),
            ANY_RATIO,
            scale="log",
            ours=True,
        ),
        _below(
            "sharper",
            "The new definition detects the property of updates more sharply (KL is quadratic; its root is compared)",
            "abstract, §2.1",
            f"other/own of √Definition 2, and the same over other/own of Definition 1, {MEANS_OF_PAIRS}",
            _sharper(ROOT, DEFINITION_1, places),
        ),
        _below(
            "softmax_better",
            "Definition 1 of the output composed with a softmax layer performs better than of the output",
            "§2",
            f"other/own of Definition 1 after the softmax, and the same over other/own of the logits, {MEANS_OF_PAIRS}",
            _sharper(DEFINITION_1, LOGITS, places),
        ),
        _below(
            "norms_alike",
            "Definition 1 in the L1 and the L2 norm: the results were essentially indistinguishable",
            "§2",
            "the largest relative difference of means with self-pairs (Definition 3), over pairs of classes and over "
            "times to the end of the longest arm that is judged",
            _each({arms[-1]: f"{NORMS}{BY[DEFINITION_3]}"}),
            effect=SAME_NORMS,
        ),
        _below(
            "early",
            "This preference sets in very early on in the training, much before the asymptotic classification accuracy",
            "§6",
            "steps until half of the fall of other/own, over steps until 95 % of the final test accuracy, "
            f"{MEANS_OF_PAIRS}",
            _each(dict.fromkeys(arms, f"{ONSET}{BY[DEFINITION_3]}")),
            effect=MUCH_BEFORE,
        ),
        _below(
            "starts_at_one",
            "By the released formula all pairs begin at about 1.00, as the figures show",
            "Figs. 1, 2, 14",
            "the largest distance from 1 over pairs, before training",
            _each({"": "released formula at the start, largest distance from 1"}),
            effect=NEAR_ONE,
            ours=True,
        ),
    )
