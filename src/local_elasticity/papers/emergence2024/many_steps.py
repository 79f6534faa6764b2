"""Up to fifty full-batch steps of the same size: do alignment, elasticity and Recall@1 keep rising together?

The abstract speaks of one step, so every sentence here is ours. The sentences and their bounds were written down before
the first run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

import local_elasticity.emergence as em
from local_elasticity.papers.emergence2024.judging import band, draw_band, over_seeds, rise_gap
from local_elasticity.papers.emergence2024.sweep import (
    Row,
    Trained,
    Variant,
    Watched,
    columns,
    features_row,
    sides,
    trained,
    turning,
)
from local_elasticity.papers.experiment import (
    Cell,
    Curve,
    Experiment,
    Findings,
    Measured,
    Reading,
    Settings,
    Unit,
    Values,
    runs_of,
)
from local_elasticity.papers.smallest_effects import ANY, CURVES_ALIKE, ELEVEN_RANKS, NO_RISE
from local_elasticity.statistics.claims import Alternatives, Claim
from local_elasticity.statistics.correlation import spearman

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAIN, SHUFFLED, SAME_SIDE = "design II, relu", "design II, shuffled labels", "design IIIb, relu"
VARIANTS = {
    MAIN: Variant(),
    "design II, tanh": Variant(activation="tanh"),
    SHUFFLED: Variant(shuffled=True),
    SAME_SIDE: Variant(design="IIIb"),
}
WATCHED = ("alignment", "elasticity", "recall")
LAST = "50 steps"

RANK, VALUE, RISE = "Spearman with |s|", "value at t = 1", "rise from t = 0 to 1"
GAP, LOSS = "max |u_A − u_LE|", "training loss"
GAIN = "gain at t = 1 from the first step to the last, as a share of the first"
TOGETHER = "Spearman of alignment and Recall@1 over the steps, t = 1"


def _of(row: str, column: str) -> Callable[[Values], Alternatives]:
    return lambda values: [{f"{row}, {column}": values.of(f"{MAIN}: {row}", column)}]


def _still(name: str, words: str) -> Claim:
    return Claim(
        name,
        f"After fifty steps {words} still rises with the train-unseen similarity",
        "ours",
        "Spearman's correlation with |s| over eleven values of t, after the last step",
        _of(f"{RANK}, {name}", LAST),
        ANY,
        scale="fisher",
        resolution=ELEVEN_RANKS,
        ours=True,
    )


CLAIMS = (
    *(_still(*one) for one in zip(WATCHED, ("alignment", "Local Elasticity", "Recall@1"), strict=True)),
    Claim(
        "gain",
        "More steps add to all three: they are larger after fifty steps than after one",
        "ours",
        GAIN,
        lambda values: [{name: values.of(f"{MAIN}: {GAIN}", name) for name in WATCHED}],
        ANY,
        ours=True,
    ),
    Claim(
        "identical",
        "Alignment and Local Elasticity rise along the same curve of the similarity up to fifty steps",
        "ours",
        "the largest distance of the two rise curves over s, at the step where it is largest",
        lambda values: [{"": values.row(f"{MAIN}: {GAP}").max(0)}],
        CURVES_ALIKE,
        "below",
        "log",
        ours=True,
    ),
    Claim(
        "together",
        "Alignment and Recall@1 rise together over the steps",
        "ours",
        TOGETHER,
        lambda values: [{"": values.of(f"{MAIN}: {TOGETHER}")}],
        ANY,
        scale="fisher",
        resolution=0.02,
        ours=True,
    ),
    Claim(
        "same_side",
        "Limit: where both classes lie on one side of β, Recall@1 does not rise after fifty steps (IIIb)",
        "ours",
        "Recall@1, t = 1 less t = 0",
        lambda values: [{SAME_SIDE: values.of(f"{SAME_SIDE}: {RISE}, recall", LAST)}],
        NO_RISE,
        "below",
        ours=True,
    ),
    Claim(
        "shuffled",
        "Control: on shuffled labels Recall@1 rises less with the similarity than on true ones, after fifty steps",
        "ours",
        "rise of Recall@1 from t = 0 to 1, true labels less shuffled ones",
        lambda values: [
            {"": values.of(f"{MAIN}: {RISE}, recall", LAST) - values.of(f"{SHUFFLED}: {RISE}, recall", LAST)}
        ],
        NO_RISE,
        ours=True,
    ),
)


class ManySteps(Experiment):
    name = "emergence2024/many_steps"
    title = "Alignment, elasticity and Recall@1 of unseen classes over up to fifty steps"
    claims = CLAIMS
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"d": 64, "n": 128, "width": 128, "per_class": 30, "values": 3, "steps": [1, 2, 3]},
        "small": {"d": 128, "n": 256, "width": 256, "per_class": 200, "values": 11, "steps": [1, 2, 5, 10, 20, 30, 50]},
        "paper": {"d": 256, "n": 512, "width": 512, "per_class": 400, "values": 11, "steps": [1, 2, 5, 10, 20, 30, 50]},
    }

    def parts(self, settings: Settings) -> list[str]:
        return list(VARIANTS)

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        variant = VARIANTS[unit.part]
        found = trained(variant, settings, unit.seed)
        losses, moments = [], []
        for at in settings["steps"]:
            found = found.continued(at)
            losses.append(_loss(found))
            moments.append([_row(found, seen) for seen in turning(variant, settings, found, unit.seed)])
        by_step = [columns(rows) for rows in moments]
        return {
            "steps": settings["steps"],
            "t": by_step[0]["t"],
            "s": by_step[0]["s"],
            LOSS: losses,
            **{name: [one[name] for one in by_step] for name in by_step[0] if name not in ("t", "s")},
        }

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        return Findings(_cells(measured), _curves(measured), {"many_steps": _draw(measured)})


def _loss(found: Trained) -> float:
    return float((found.task.y - found.after(found.task.X)).square().mean() / 2)


def _row(found: Trained, seen: Watched) -> Row:
    forms = features_row(seen)
    kept = ("alignment", "normalized alignment", "cosine", "centred cosine", "elasticity", "separability")
    return {
        **{name: value for name, value in sides(found, seen).items() if name in ("t", "s")},
        **{name: forms[name] for name in kept},
        "recall": em.recall_at_k(seen.after, seen.labels),
    }


def _cells(measured: Mapping[Unit, Measured]) -> list[Cell]:
    cells = []
    for part in VARIANTS:
        runs = runs_of(measured, part)
        for place, step in enumerate(runs[0]["steps"] if runs else ()):
            column = "1 step" if step == 1 else f"{step} steps"
            for name in WATCHED:
                ranks = tuple(spearman(run["s"], run[name][place]) for run in runs)
                cells.append(Cell(f"{part}: {RANK}, {name}", column, None, ranks))
                cells.append(
                    Cell(f"{part}: {VALUE}, {name}", column, None, tuple(run[name][place][-1] for run in runs))
                )
                rises = tuple(run[name][place][-1] - run[name][place][0] for run in runs)
                cells.append(Cell(f"{part}: {RISE}, {name}", column, None, rises))
            gaps = tuple(_gap(run, place) for run in runs)
            cells.append(Cell(f"{part}: {GAP}", column, None, gaps, reason=_unresolved(gaps)))
            cells.append(Cell(f"{part}: {LOSS}", column, None, tuple(run[LOSS][place] for run in runs)))
        for name in WATCHED:
            cells.append(Cell(f"{part}: {GAIN}", name, None, tuple(_gain(run, name) for run in runs)))
        together = tuple(
            spearman(*([row[-1] for row in run[name]] for name in ("alignment", "recall"))) for run in runs
        )
        cells.append(Cell(f"{part}: {TOGETHER}", "", None, together))
    return cells


def _gap(run: Measured, place: int) -> float:
    """max over s of |u_A − u_LE| after one of the steps."""
    return rise_gap(run["alignment"][place], run["elasticity"][place])


def _unresolved(gaps: Sequence[float]) -> str:
    number = int(np.isnan(gaps).sum())
    return f"not resolved at {number} of {len(gaps)} seeds: the rise is near 0" if number else ""


def _gain(run: Measured, name: str) -> float:
    first, last = run[name][0][-1], run[name][-1][-1]
    return float((last - first) / abs(first))


def _curves(measured: Mapping[Unit, Measured]) -> list[Curve]:
    """Every quantity at t = 0, ½ and 1 against the number of steps."""
    curves = []
    for part in VARIANTS:
        runs = runs_of(measured, part)
        for name in WATCHED if runs else ():
            values, t = over_seeds(runs, name), runs[0]["t"]
            for place in sorted({0, len(t) // 2, len(t) - 1}):
                curves.append(
                    band(f"{part}: {name}, t = {t[place]:g}", np.array(runs[0]["steps"]), values[:, :, place])
                )
    return curves


def _draw(measured: Mapping[Unit, Measured]) -> Figure:
    """The three at t = 0, ½ and 1 along the steps, and in the other variants at t = 1; the gap of the rise curves."""
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, STYLE, TWO_COLUMNS, figure

    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 4.4)
        panels = made.subplots(2, 3, sharex=True)
        for column, name in enumerate(WATCHED):
            runs = runs_of(measured, MAIN)
            t, steps = runs[0]["t"], np.array(runs[0]["steps"])
            for place, colour in zip(sorted({0, len(t) // 2, len(t) - 1}), COLOURS, strict=False):
                values = over_seeds(runs, name)[:, :, place]
                draw_band(panels[0, column], steps, values, color=colour, label=f"t = {t[place]:g}")
            for part, colour in zip(VARIANTS, COLOURS, strict=False):
                values = over_seeds(runs_of(measured, part), name)[:, :, -1]
                draw_band(panels[1, column], steps, values, color=colour, label=part)
            title = "Recall@1" if name == "recall" else name
            panels[0, column].set(title=f"{title}, {MAIN}", xscale="log")
            panels[1, column].set(title=f"{title} at t = 1", xlabel="steps")
        panels[0, 0].legend()
        panels[1, 0].legend()
    return made
