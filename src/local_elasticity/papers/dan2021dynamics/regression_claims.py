"""What the paper says of regression (Hypotheses 1.1 and 1.2, §1.4 C, §2.2), and what is compared, run by run.

The hypotheses begin "there exist learning situations": a net of the grid that shows one is enough to support it, and a
net that does not refutes the general reading only. Each net of the grid is therefore an alternative. Hypothesis 1.1b
says that S_rel is at most of the order of a symmetric function of the pair, and §1.4 C compares SGD with derived flows
of solvable models. Neither is measured here, so what is judged in their places is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from local_elasticity.papers.experiment import Cell, Measured, Values
from local_elasticity.papers.smallest_effects import DOWNWARD, FLOW_CLOSE, MOST_SOURCES, NOT_FALLING, ORDER_KEPT
from local_elasticity.statistics.change_point import change_point
from local_elasticity.statistics.claims import Alternatives, Claim
from local_elasticity.statistics.correlation import spearman

GRID = tuple(f"{start} {activation}" for start in ("default", "he-normal") for activation in ("relu", "tanh"))

FALLEN = 0.9
"""The risk has fallen rapidly until this share of its fall is done."""

TREND = "Spearman of S_rel with distance"
KEPT = "Spearman of S_rel at the first and the last time"
RISES = "share of sources whose S_rel is smaller early (first tenth) than late (last quarter)"
RISES_STRICTLY = "share of sources whose every early S_rel is below every late one"
DRIFT = "S_rel in the last quarter over that in the third"
CHANGE = "p-value of a change between two phases, against a steady drift"
WHILE_FALLING = "share of the movement of S_rel while the empirical risk does 90 % of its fall"
WHOLE = "median S_rel, late over first"
FLOW = "median relative difference of S_rel at the rate and at a quarter of it, at equal times"


def cells(grid: Mapping[str, Sequence[Measured]], flow: Sequence[Measured]) -> Iterator[Cell]:
    """All that claims are judged from, a number for every run."""
    for part, runs in grid.items():
        for place, time in enumerate(runs[0]["times"] if runs else ()):
            trend = tuple(spearman(run["S"][place], run["distance"]) for run in runs)
            yield Cell(f"{part}: {TREND}", f"t = {time}", None, trend)
        found = {
            KEPT: [spearman(run["S"][0], run["S"][-1]) for run in runs],
            RISES: [run["rises"] for run in runs],
            RISES_STRICTLY: [run["rises strictly"] for run in runs],
            f"{DRIFT}, near source": [_drift(run["near"]) for run in runs],
            f"{DRIFT}, far source": [_drift(run["far"]) for run in runs],
            CHANGE: [change_point(run["t"], run["all"][1]).p_value for run in runs],
            WHILE_FALLING: [_share_while_falling(run) for run in runs],
            WHOLE: [_whole_change(run) for run in runs],
        }
        for name, values in found.items():
            yield Cell(f"{part}: {name}", "", None, tuple(values))
    yield Cell(FLOW, "", None, tuple(map(_flow_difference, flow)))


def _some_net(names: Callable[[str, Values], Mapping[str, np.ndarray]]) -> Callable[[Values], Alternatives]:
    return lambda values: [{f"{part}, {name}": x for name, x in names(part, values).items()} for part in GRID]


def _one(what: str) -> Callable[[str, Values], Mapping[str, np.ndarray]]:
    return lambda part, values: {what: values.of(f"{part}: {what}")}


def _trend(part: str, values: Values) -> Mapping[str, np.ndarray]:
    row = f"{part}: {TREND}"
    return dict(zip(values.columns(row), values.row(row), strict=True))


def _drifts(part: str, values: Values) -> Mapping[str, np.ndarray]:
    return {which: values.of(f"{part}: {DRIFT}, {which}") for which in ("near source", "far source")}


def _everywhere(values: Values) -> Alternatives:
    return [{f"{part}, {time}": x for part in GRID for time, x in _trend(part, values).items()}]


CLAIMS = (
    Claim(
        "proximity",
        "At all times S_rel has a downward trend with distance (there exist learning situations)",
        "Hypothesis 1.1a",
        "Spearman's correlation of S_rel with ‖x − x′‖ at six times, some net of the grid",
        _some_net(_trend),
        DOWNWARD,
        "below",
        "fisher",
    ),
    Claim(
        "proximity_everywhere",
        "The same in all four nets of the grid",
        "Hypothesis 1.1a",
        "Spearman's correlation of S_rel with ‖x − x′‖ at six times, every net",
        _everywhere,
        DOWNWARD,
        "below",
        "fisher",
        implies=("proximity",),
        ours=True,
    ),
    Claim(
        "bounded",
        "Which sources move the target little does not depend on time (there exist learning situations)",
        "Hypothesis 1.1b, which says bounded by a symmetric function of the pair",
        "Spearman's correlation of S_rel at the first and the last time",
        _some_net(_one(KEPT)),
        ORDER_KEPT,
        scale="fisher",
        ours=True,
    ),
    Claim(
        "early",
        "For most pairs S_rel is smaller early in training than at any late time (there exist learning situations)",
        "Hypothesis 1.2a, which says all pairs",
        "share of sources whose every early S_rel is below every late one, some net of the grid",
        _some_net(_one(RISES_STRICTLY)),
        MOST_SOURCES,
        scale="arcsine",
        ours=True,
    ),
    Claim(
        "late",
        "Late in training S_rel does not fall at a near and a far source (there exist learning situations)",
        "Hypothesis 1.2b, which says all pairs",
        "S_rel in the last quarter over that in the third, both sources",
        _some_net(_drifts),
        NOT_FALLING,
        scale="log",
        ours=True,
    ),
    Claim(
        "with_the_risk",
        "The initial rising part of S_rel coincides with the phase when both risks are falling rapidly",
        "§2.2, Fig. 5",
        "share of all movement of S_rel, up and down, that is done while the empirical risk falls (the sentence: the "
        "initial rise, both risks)",
        _some_net(_one(WHILE_FALLING)),
        MOST_SOURCES,
        scale="arcsine",
    ),
    Claim(
        "flow",
        "S_rel along SGD hardly depends on the rate: at a quarter of it, it is the same at equal times",
        "§1.4 C, which is about flows of solvable models",
        FLOW,
        lambda values: [{"": values.of(FLOW)}],
        FLOW_CLOSE,
        "below",
        "log",
        ours=True,
    ),
)


def _drift(curve: Sequence[float | None]) -> float:
    values = _array(curve)
    quarter = max(1, len(values) // 4)
    return float(np.nanmean(values[-quarter:]) / np.nanmean(values[-2 * quarter : -quarter]))


def _share_while_falling(run: Measured) -> float:
    """How much of the whole way of S_rel, up and down, lies before the risk has done most of its fall."""
    risk, S = _array(run["empirical"]), _array(run["all"][1])
    fallen = np.flatnonzero(risk[0] - risk >= FALLEN * (risk[0] - risk.min()))[0]
    way = np.abs(np.diff(_smooth(S)))
    return float(way[:fallen].sum() / way.sum())


def _whole_change(run: Measured) -> float:
    S = _array(run["all"][1])
    return float(np.nanmean(S[-max(1, len(S) // 4) :]) / S[0])


def _flow_difference(run: Measured) -> float:
    slow, fast = (_array(run[which]["all"][1]) for which in ("slow", "fast"))
    return float(np.nanmedian(np.abs(slow / fast - 1)))


def _smooth(values: np.ndarray, width: int = 5) -> np.ndarray:
    return np.convolve(values, np.ones(width) / width, mode="valid") if len(values) > 2 * width else values


def _array(values: Sequence[float | None]) -> np.ndarray:
    return np.array(values, dtype=float)
