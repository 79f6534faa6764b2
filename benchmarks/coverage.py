"""How often bootstrap intervals of class pairs contain the true value, at a nominal 95 %.

    python benchmarks/coverage.py

Similarities of two classes are drawn as exp(source + target + pair), three independent normal terms, so that the true
median, mean and trimmed mean are known. `spread` is the standard deviation of the logarithm: S_rel of trained
classifiers has 1 to 3. Sources and targets are resampled, as `class_pairs` does. Figures go to
benchmarks/results/coverage.json, and the table of docs/how-to/numbers.md is made from them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from scipy import stats

from local_elasticity.statistics.bootstrap import TRIMMED_SHARE, Reduction, draws, quantiles, reduced

SIMULATIONS, RESAMPLES = 400, 200
SIZES = (10, 20, 50)
SPREADS = (0.3, 1.0, 2.0)
SHARES = {"source": 0.4, "target": 0.4, "pair": 0.2}
"""Of the variance of the logarithm."""

REDUCTIONS: tuple[Reduction, ...] = ("median", "trimmed", "mean")
RESULTS = Path(__file__).parent / "results" / "coverage.json"


def true_value(reduce: Reduction, spread: float) -> float:
    """Of the lognormal distribution of one pair."""
    if reduce == "median":
        return 1.0
    if reduce == "mean":
        return math.exp(spread**2 / 2)
    low, high = stats.norm.ppf([TRIMMED_SHARE, 1 - TRIMMED_SHARE])
    inside = stats.norm.cdf(high - spread) - stats.norm.cdf(low - spread)
    return float(math.exp(spread**2 / 2) * inside / (1 - 2 * TRIMMED_SHARE))


def drawn(rng: np.random.Generator, size: int, spread: float) -> np.ndarray:
    source, target, pair = (spread * math.sqrt(share) for share in SHARES.values())
    logs = source * rng.normal(size=(size, 1)) + target * rng.normal(size=size) + pair * rng.normal(size=(size, size))
    return np.exp(logs)


def coverage(size: int, spread: float) -> dict[str, float]:
    """The share of intervals that contain the true value, by reduction."""
    rng = np.random.default_rng(0)
    inside = dict.fromkeys(REDUCTIONS, 0)
    for _ in range(SIMULATIONS):
        block = drawn(rng, size, spread)
        resamples = draws(rng, block.shape, RESAMPLES)
        for reduce in REDUCTIONS:
            low, high = quantiles(reduced(block, reduce, None, *resamples)[1:], 0.95)
            inside[reduce] += low <= true_value(reduce, spread) <= high
    return {reduce: count / SIMULATIONS for reduce, count in inside.items()}


def table(rows: list[dict[str, float]]) -> str:
    """As the documentation shows it."""
    head = "| points a class | spread of log S | median | trimmed mean | mean |\n|---|---|---|---|---|"
    lines = [
        f"| {row['points']:.0f} | {row['spread']:g} | " + " | ".join(f"{100 * row[r]:.0f} %" for r in REDUCTIONS) + " |"
        for row in rows
    ]
    return "\n".join([head, *lines])


def main() -> None:
    rows = [{"points": n, "spread": spread, **coverage(n, spread)} for n in SIZES for spread in SPREADS]
    made = {"simulations": SIMULATIONS, "resamples": RESAMPLES, "nominal": 0.95, "rows": rows}
    RESULTS.write_text(json.dumps(made, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
