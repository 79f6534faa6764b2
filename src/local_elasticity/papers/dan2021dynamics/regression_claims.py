"""What the paper says of regression (Hypotheses 1.1 and 1.2, §1.4 C, §2.2), and the verdicts over the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from local_elasticity.papers.experiment import Claim, Measured
from local_elasticity.statistics.change_point import change_point
from local_elasticity.statistics.correlation import spearman

TREND = -0.5
"""Spearman's correlation with distance from which on there is a downward trend."""

KEPT = 0.5
"""Spearman's correlation between two times from which on the order of the sources is kept."""

DRIFT = -0.05
"""A late phase does not fall where its relative change stays above this."""

FALLEN = 0.9
"""The risk has fallen rapidly until this share of its fall is done."""

CLOSE = 0.1
"""Two curves are close where their median relative difference is below this."""

CLAIMS = (
    Claim("proximity", "At all times S_rel has a downward trend with distance (Hypothesis 1.1a)"),
    Claim("bounded", "Which sources move the target little does not depend on time (Hypothesis 1.1b)"),
    Claim("early", "S_rel is smaller early in training than at any late time (Hypothesis 1.2a)"),
    Claim("late", "Late in training S_rel is bounded below and does not fall (Hypothesis 1.2b)"),
    Claim("two_phases", "S_rel has two phases in time, with a change between them (§1.3, §2.2)"),
    Claim("with_the_risk", "S_rel rises while both risks fall rapidly, and is steady after (§2.2, Fig. 5)"),
    Claim("flow", "S_rel along SGD has a limit in continuous time: it follows the flow (§1.4 C)"),
)

Grid = Mapping[str, Sequence[Measured]]


def judge(grid: Grid, flow: Sequence[Measured]) -> list[Claim]:
    """All claims, in the order of CLAIMS: each over every part of the grid and every seed."""
    judged = [judge_one(grid) for judge_one in (_proximity, _bounded, _early, _late, _two_phases, _with_risk)]
    return [*judged, _flow(flow)]


def _proximity(grid: Grid) -> Claim:
    found = {part: [[spearman(S, run["distance"]) for S in run["S"]] for run in runs] for part, runs in grid.items()}
    outcomes = [max(times) < TREND for runs in found.values() for times in runs]
    said = _by_part({part: float(np.mean(values)) for part, values in found.items() if values})
    means = [float(np.mean(times)) for runs in found.values() for times in runs]
    return CLAIMS[0].judged(outcomes, means, f"Spearman's correlation, mean over times and seeds: {said}")


def _bounded(grid: Grid) -> Claim:
    found = {part: [spearman(run["S"][0], run["S"][-1]) for run in runs] for part, runs in grid.items()}
    outcomes = [value > KEPT for values in found.values() for value in values]
    said = _by_part({part: float(np.mean(values)) for part, values in found.items() if values})
    evidence = (
        f"that some symmetric bound exists says little by itself; tested is whether the order of the sources is kept: "
        f"Spearman's correlation of S_rel at the first and the last time, {said}"
    )
    return CLAIMS[1].judged(outcomes, _every(found), evidence)


def _early(grid: Grid) -> Claim:
    found = {part: [run["rises"] for run in runs] for part, runs in grid.items()}
    outcomes = [value > 0.9 for values in found.values() for value in values]
    said = _by_part({part: float(np.mean(values)) for part, values in found.items() if values}, "{:.0%}")
    literally = {part: float(np.mean([run["rises strictly"] for run in runs])) for part, runs in grid.items() if runs}
    evidence = (
        f"share of sources whose mean over the first tenth is below that over the last quarter: {said}; whose every "
        f"value then is below every later one: {_by_part(literally, '{:.0%}')}"
    )
    return CLAIMS[2].judged(outcomes, _every(found), evidence)


def _late(grid: Grid) -> Claim:
    found = {part: [_drift(run[name]) for run in runs for name in ("near", "far")] for part, runs in grid.items()}
    outcomes = [value > DRIFT for values in found.values() for value in values]
    said = _by_part({part: float(np.mean(values)) for part, values in found.items() if values}, "{:+.0%}")
    evidence = f"relative change from the third to the last quarter, both sources: {said}"
    return CLAIMS[3].judged(outcomes, _every(found), evidence)


def _two_phases(grid: Grid) -> Claim:
    found = {part: [change_point(run["t"], run["all"][1]) for run in runs] for part, runs in grid.items()}
    outcomes = [one.p_value < 0.05 for changes in found.values() for one in changes]
    said = _by_part(
        {
            part: f"at t = {np.median([one.step for one in changes]):.0f} from "
            f"{np.mean([one.before for one in changes]):.2f} to {np.mean([one.after for one in changes]):.2f}, "
            f"p < 0.05 against a steady drift in {sum(one.p_value < 0.05 for one in changes)} of {len(changes)}"
            for part, changes in found.items()
            if changes
        },
        "{}",
    )
    ratios = [np.log(one.after / one.before) for changes in found.values() for one in changes]
    return CLAIMS[4].judged(outcomes, ratios, f"median S_rel over the sources changes {said}")


def _with_risk(grid: Grid) -> Claim:
    found = {part: [_share_while_falling(run) for run in runs] for part, runs in grid.items()}
    rises = {part: [_rise(run) for run in runs] for part, runs in grid.items()}
    outcomes = [share > 0.5 and rise > 0 for part in grid for share, rise in zip(found[part], rises[part], strict=True)]
    said = _by_part({part: float(np.mean(values)) for part, values in found.items() if values}, "{:.0%}")
    up = _by_part({part: float(np.mean(values)) for part, values in rises.items() if values}, "{:+.2f}")
    evidence = (
        f"share of the way of the median S_rel that is gone while the empirical risk does {FALLEN:.0%} of its fall: "
        f"{said}; its whole change: {up}"
    )
    return CLAIMS[5].judged(outcomes, _every(found), evidence)


def _flow(flow: Sequence[Measured]) -> Claim:
    apart = [
        float(np.nanmedian(np.abs(_array(run["slow"]["all"][1]) / _array(run["fast"]["all"][1]) - 1))) for run in flow
    ]
    evidence = "median relative difference of the median S_rel at the rate and at a quarter of it, at equal times: "
    said = ", ".join(f"{value:.1%}" for value in apart)
    return CLAIMS[6].judged([value < CLOSE for value in apart], apart, evidence + said)


def _drift(curve: Sequence[float | None]) -> float:
    values = _array(curve)
    quarter = max(1, len(values) // 4)
    return float(np.nanmean(values[-quarter:]) / np.nanmean(values[-2 * quarter : -quarter]) - 1)


def _share_while_falling(run: Measured) -> float:
    """How much of the whole way of S_rel, up and down, lies before the risk has done most of its fall."""
    risk, S = _array(run["empirical"]), _array(run["all"][1])
    fallen = np.flatnonzero(risk[0] - risk >= FALLEN * (risk[0] - risk.min()))[0]
    way = np.abs(np.diff(_smooth(S)))
    return float(way[:fallen].sum() / way.sum())


def _rise(run: Measured) -> float:
    S = _array(run["all"][1])
    return float(np.nanmean(S[-max(1, len(S) // 4) :]) - S[0])


def _smooth(values: np.ndarray, width: int = 5) -> np.ndarray:
    return np.convolve(values, np.ones(width) / width, mode="valid") if len(values) > 2 * width else values


def _array(values: Sequence[float | None]) -> np.ndarray:
    return np.array(values, dtype=float)


def _every(found: Mapping[str, Sequence[float]]) -> list[float]:
    return [value for values in found.values() for value in values]


def _by_part(values: Mapping[str, Any], form: str = "{:.2f}") -> str:
    return "; ".join(f"{part}: {form.format(value)}" for part, value in values.items())
