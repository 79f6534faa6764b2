"""Clustering, honestly: tabular data against K-means, and what chooses the number of clusters.

    python benchmarks/n_clusters.py

`LocalElasticityClustering` with its defaults (auxiliary points are shuffled features) against K-means on standardised
columns, at the true number of kinds: adjusted Rand index (ARI), five seeds. Then the number of clusters from 2 to 12 is
chosen without labels:

* by `score`; by stability over seeds, the mean ARI between the clusterings of two seeds; by stability over seeds and
  samples of 80 % of the points: its highest, or the largest number within 0.05 of that. The last is the rule of
  `le.clustering.stability(...).best`, which draws other samples;
* for K-means by the silhouette, by stability over samples, and by the gap statistic.

The rule "within 0.05" was chosen on the first seven data sets; the last four are new to it. Figures go to
benchmarks/results/n_clusters-cpu.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_blobs
from sklearn.metrics import adjusted_rand_score, silhouette_score
from sklearn.preprocessing import StandardScaler

import local_elasticity as le

RESULTS = Path(__file__).parent / "results"
MOST, SHARE, REFERENCES, POINTS = 12, 0.8, 10, 400

Data = tuple[np.ndarray, np.ndarray]


def digits(stop: int, start: int = 0, step: int = 1) -> Data:
    """The first images of some digits."""
    X, y = load_digits(return_X_y=True)
    rows = np.flatnonzero(np.isin(y, range(start, stop, step)))[:POINTS]
    return X[rows], y[rows]


DATA: dict[str, Callable[[], Data]] = {
    "iris": lambda: load_iris(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "breast cancer": lambda: tuple(part[:POINTS] for part in load_breast_cancer(return_X_y=True)),  # type: ignore[return-value]
    "blobs, 5 kinds": lambda: make_blobs(300, centers=5, n_features=5, random_state=4),
    "digits, 4 kinds": lambda: digits(4),
    "digits, 5 kinds": lambda: digits(5),
    "digits, 10 kinds": lambda: digits(10),
}
"""On which the rule was chosen."""

NEW_DATA: dict[str, Callable[[], Data]] = {
    "blobs, 3 kinds": lambda: make_blobs(300, centers=3, n_features=8, cluster_std=2.0, random_state=1),
    "blobs, 8 kinds": lambda: make_blobs(300, centers=8, n_features=8, cluster_std=1.5, random_state=2),
    "digits 5, 6, 7, 8": lambda: digits(9, 5),
    "digits 1, 3, 5, 7, 9": lambda: digits(10, 1, 2),
}
"""On which it was not."""

Labelling = Callable[[int, np.ndarray], np.ndarray]
"""(clusters, rows) → labels of those rows."""


def pairs_agree(labellings: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """The mean ARI of two labellings at the points that both have; rows and labels of each."""
    found = []
    for (rows, labels), (others, theirs) in itertools.combinations(labellings, 2):
        _, here, there = np.intersect1d(rows, others, return_indices=True)
        found.append(adjusted_rand_score(labels[here], theirs[there]))
    return float(np.mean(found))


def stability(several: list[Labelling], n: int, k: int, *, sampled: bool) -> float:
    """Of the labellings of several seeds, on all points or on a sample for each."""
    rng = np.random.default_rng(0)
    rows = [np.sort(rng.choice(n, int(SHARE * n), replace=False)) if sampled else np.arange(n) for _ in several]
    return pairs_agree([(some, labelling(k, some)) for some, labelling in zip(rows, several, strict=True)])


def gap(X: np.ndarray, ks: range) -> int:
    """Tibshirani et al. 2001: the least k with gap(k) ≥ gap(k + 1) − s(k + 1)."""
    rng = np.random.default_rng(0)
    low, high = X.min(0), X.max(0)

    def logs(points: np.ndarray) -> list[float]:
        return [float(np.log(KMeans(k, n_init=3, random_state=0).fit(points).inertia_)) for k in (*ks, ks[-1] + 1)]

    own = np.array(logs(X))
    drawn = np.array([logs(rng.uniform(low, high, X.shape)) for _ in range(REFERENCES)])
    gaps, errors = drawn.mean(0) - own, drawn.std(0) * np.sqrt(1 + 1 / REFERENCES)
    for i, k in enumerate(ks):
        if gaps[i] >= gaps[i + 1] - errors[i + 1]:
            return k
    return ks[-1]


def by_elasticity(S: np.ndarray, seed: int) -> Labelling:
    def labelled(k: int, rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = le.KernelKMeans(k, random_state=seed).fit(S[np.ix_(rows, rows)]).labels_
        return found

    return labelled


def by_kmeans(X: np.ndarray, seed: int) -> Labelling:
    def labelled(k: int, rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = KMeans(k, n_init=10, random_state=seed).fit(X[rows]).labels_
        return found

    return labelled


def scores(model: le.LocalElasticityClustering, X: np.ndarray, ks: range) -> list[float]:
    """`model.score(X)` at each number of clusters, from one similarity; the same formula."""
    S = model.similarity_
    found = []
    for k in ks:
        groups = le.KernelKMeans(k, random_state=0).fit(S)
        a, b = np.sort(groups.distances(S, diagonal=S.diagonal()), axis=1)[:, :2].T
        found.append(float(np.mean(np.divide(b - a, b, out=np.zeros_like(b), where=b > 0))))
    return found


def measured(X: np.ndarray, y: np.ndarray, seeds: int) -> dict[str, Any]:
    ks, kinds, n = range(2, MOST + 1), len(np.unique(y)), len(X)
    scaled = StandardScaler().fit_transform(X)
    models = [le.LocalElasticityClustering(kinds, random_state=seed).fit(X) for seed in range(seeds)]
    ours = [by_elasticity(model.similarity_, seed) for seed, model in enumerate(models)]
    theirs = [by_kmeans(scaled, seed) for seed in range(seeds)]
    everything = np.arange(n)
    silhouettes = [silhouette_score(scaled, theirs[0](k, everything)) for k in ks]
    by_k = {
        "score": np.mean([scores(model, X, ks) for model in models], axis=0),
        "stability over seeds": [stability(ours, n, k, sampled=False) for k in ks],
        "stability over seeds and samples": [stability(ours, n, k, sampled=True) for k in ks],
        "K-means, silhouette": silhouettes,
        "K-means, stability over samples": [stability(theirs, n, k, sampled=True) for k in ks],
    }
    chosen = {name: ks[int(np.argmax(values))] for name, values in by_k.items()}
    level = np.array(by_k["stability over seeds and samples"])
    chosen["stability over seeds and samples, within 0.05"] = ks[int(np.flatnonzero(level >= level.max() - 0.05)[-1])]
    chosen["K-means, gap"] = gap(scaled, ks)
    return {
        "points": n,
        "kinds": kinds,
        "ARI of local elasticity": [_short(adjusted_rand_score(y, model.labels_)) for model in models],
        "ARI of K-means": [_short(adjusted_rand_score(y, labelled(kinds, everything))) for labelled in theirs],
        "chosen": chosen,
        "by number of clusters": {name: [_short(value) for value in values] for name, values in by_k.items()},
    }


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "n_clusters-cpu.json")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="some of the data sets, by name")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    found = {}
    for name, load in {**DATA, **NEW_DATA}.items():
        if options.only and name not in options.only:
            continue
        found[name] = measured(*load(), options.seeds)
        row = found[name]
        print(name, row["ARI of local elasticity"], row["ARI of K-means"], row["chosen"], flush=True)
    report = {
        "machine": f"{os.cpu_count()} CPU cores, one thread",
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "seconds": round(time.perf_counter() - began),
        "data": found,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
