"""Closed forms against the notebook's way: S_rel of 400 pairs at 8001 times, as ratios within one run.

    python benchmarks/theory.py

The notebook computes a matrix exponential at every time step (for each of two classes, each start and each pair).
Beaten against is a kinder version: one exponential for each time serves both classes and all pairs. It is timed on some
times, before and after the closed form, and scaled to all. SGD ensembles: all runs at once against run after run.
Figures go to benchmarks/results/theory-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.linalg import expm, inv

from local_elasticity.papers.dan2021dynamics.homogeneous import STEP, TRUTH, sgd
from local_elasticity.theory import PenalisedFeatures

RESULTS = Path(__file__).parent / "results"
SIZE, PER_CLASS, PAIRS_SIDE, RATE = 100, 1000, 20, 1e-6
TIMES = np.arange(8001.0)
SAMPLED = 40
RUNS, STEPS, SAMPLED_RUNS = 1000, 2000, 10


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = np.concatenate([1 + rng.normal(size=(PER_CLASS, 100)), 9 + rng.normal(size=(PER_CLASS, 100))])
    features = np.maximum(inputs @ rng.normal(size=(SIZE, 100)).T, 0)
    return features, np.repeat([0, 1], PER_CLASS), rng.normal(size=(2, SIZE))


def closed_form(features: np.ndarray, labels: np.ndarray, w0: np.ndarray) -> np.ndarray:
    """Everything: moments, eigendecomposition, [8001, 20, 20] similarities."""
    flow = PenalisedFeatures(features, labels, 1.0, RATE, w0, reading="as_printed")
    return flow.relative(TIMES, (features[:PAIRS_SIDE], labels[:PAIRS_SIDE]), features[-PAIRS_SIDE:])


def exponential_per_time(features: np.ndarray, labels: np.ndarray, w0: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Theorem 3.1 and eq. 4 as the notebook has them, but for all pairs at once."""
    n, classes = len(features), 2
    ridge = n / classes
    bound = ridge * np.eye(SIZE) + features.T @ features / n
    sums = np.stack([features[labels == q].sum(0) / n for q in range(classes)])
    h, v = features[:PAIRS_SIDE], features[-PAIRS_SIDE:]
    products, squares = h @ v.T, (h**2).sum(1)
    tilde = ridge + squares
    found = []
    for t in times:
        end = inv(bound) @ sums.T
        w = (expm(-RATE * t * bound) @ (w0.T - end) + end).T
        at_source, at_target = w @ h.T, w @ v.T
        spread = ridge * at_target[:, None, :] + at_source[:, :, None] * products
        above = products**2 - 2 * products * spread[0] + (spread**2).sum(0)
        below = squares**2 - 2 * tilde * squares * at_source[0] + tilde**2 * (at_source**2).sum(0)
        found.append(np.sqrt(above / below[:, None]))
    return np.stack(found)


def run_after_run(runs: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(runs):
        w = np.sqrt([0.5, 2.0, 4.0])
        for _ in range(STEPS):
            x = rng.normal(size=3)
            w = w + 2 * STEP * (x @ (TRUTH - w**2)) * x * w


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(turns: int) -> dict[str, object]:
    features, labels, w0 = problem()
    some = np.linspace(0, 8000, SAMPLED).round()
    ours = closed_form(features, labels, w0)
    theirs = exponential_per_time(features, labels, w0, some)
    kept = []
    for _ in range(turns):
        before = seconds(lambda: exponential_per_time(features, labels, w0, some))
        closed = seconds(lambda: closed_form(features, labels, w0))
        after = seconds(lambda: exponential_per_time(features, labels, w0, some))
        ensemble = seconds(lambda: sgd(np.random.default_rng(0), RUNS, np.array([0, STEPS])))
        single = seconds(lambda: run_after_run(SAMPLED_RUNS))
        kept.append(
            {
                "closed form": closed,
                "exponential per time": (before + after) / 2 * len(TIMES) / SAMPLED,
                "SGD, all runs at once": ensemble,
                "SGD, run after run": single * RUNS / SAMPLED_RUNS,
            }
        )
    return {
        "case": f"{len(TIMES)} times x {PAIRS_SIDE**2} pairs, p = {SIZE}; {RUNS} SGD runs of {STEPS} steps",
        "seconds": {name: statistics.median(turn[name] for turn in kept) for name in kept[0]},
        "turns": kept,
        "times of the exponential timed": 2 * SAMPLED,
        "largest relative difference": float(np.abs(ours[some.astype(int)] / theirs - 1).max()),
        "exponential / closed form": statistics.median(t["exponential per time"] / t["closed form"] for t in kept),
        "run after run / all at once": statistics.median(
            t["SGD, run after run"] / t["SGD, all runs at once"] for t in kept
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "theory-cpu.json")
    options = parser.parse_args()
    found = measure(options.turns)
    closed = found["seconds"]["closed form"]  # type: ignore[index]
    ratio = found["exponential / closed form"]
    verdicts = [
        ("closed form under a second", closed, "pass" if closed < 1 else "miss"),
        ("exponential per time / closed form at least 100", ratio, "pass" if ratio >= 100 else "miss"),  # type: ignore[operator]
    ]
    threads = os.environ.get("OMP_NUM_THREADS", "as many as there are")
    report = {
        "machine": f"{os.cpu_count()} CPU cores (threads: {threads})",
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**report, **found, "verdicts": verdicts}, indent=1) + "\n")
    for name, value in found["seconds"].items():  # type: ignore[attr-defined]
        print(f"{name}: {value:.3g} s")
    print(f"run after run / all at once: {found['run after run / all at once']:.0f}")
    for what, value, verdict in verdicts:
        print(f"{verdict:5} {value:8.3g}  {what}")


if __name__ == "__main__":
    main()
