"""Clustering: the similarity matrix, kernel K-means and the warm-up, as ratios within one run.

    python benchmarks/clustering.py           # minutes on 2 cores; the figures of the documentation
    python benchmarks/clustering.py --quick   # small, to see that it runs

* *Similarity.* One MNIST pair, n = 1000, 40960 units: the structured engine whole, and in the limit of small steps,
  against a loop written as the released code does it (restore the weights, one step of torch.optim, predictions in
  batches of 50; its repetitions at larger rates are left out, in its favour), timed on some rows and scaled.
* *Kernel K-means.* 10 starts on a 1000×1000 Gaussian kernel of MNIST: ours on the ready kernel and with computing it,
  scikit-learn's Nystroem(300) + KMeans and tslearn's KernelKMeans on the points; all objectives on the exact kernel.
* *Warm-up.* Seconds for an epoch against its matrix products alone.

It needs tslearn (pip install -c constraints.txt tslearn). Figures go to benchmarks/results/clustering-cpu.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.pipeline import make_pipeline
from torch import Tensor, nn

import local_elasticity as le
from local_elasticity.clustering.partition import Partitions
from local_elasticity.clustering.warm_up import Training, warm_up

RESULTS = Path(__file__).parent / "results"
STARTS = 10


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def released_loop(net: nn.Module, x: Tensor, rows: int) -> None:
    """Restore, step, predict in batches of 50."""
    model, still = copy.deepcopy(net), copy.deepcopy(net)
    for i in range(rows):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        model.load_state_dict(still.state_dict())
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[i : i + 1])[:, 0], torch.ones(1)).backward()
        optimizer.step()
        np.concatenate([model(x[j : j + 50]).detach().numpy() for j in range(0, len(x), 50)])


def similarity(x: Tensor, width: int, loop_rows: int) -> dict[str, Any]:
    torch.manual_seed(0)
    net = le.models.fnn(784, width=width)
    problem, sources = le.Problem.of(net, "mse"), (x, torch.ones(len(x)))

    def by(engine: str) -> None:
        le.kernel(le.respond(problem, sources, update=le.SGD(1e-6), engine=engine, progress=False))

    by("structured")  # proves itself once for a model
    before = seconds(lambda: released_loop(net, x, loop_rows // 2)) / (loop_rows // 2)
    structured = [seconds(lambda: by("structured")) for _ in range(2)]
    limit = [seconds(lambda: by("linearized")) for _ in range(2)]
    after = seconds(lambda: released_loop(net, x, loop_rows // 2)) / (loop_rows // 2)
    loop = (before + after) / 2 * len(x)
    return {
        "n": len(x),
        "width": width,
        "loop rows timed": 2 * (loop_rows // 2),
        "seconds": {
            "released loop, scaled": loop,
            "structured": min(structured),
            "limit of small steps": min(limit),
        },
        "released / structured": loop / min(structured),
        "released / limit of small steps": loop / min(limit),
    }


def kernel_kmeans(x: Tensor, clusters: int, turns: int) -> dict[str, Any]:
    from tslearn.clustering import KernelKMeans as OfTslearn

    X = x.flatten(1).double().numpy()
    gamma = 1 / (X.shape[1] * X.var())
    K = rbf_kernel(X, gamma=gamma)
    ways: dict[str, Callable[[], Any]] = {
        "ours": lambda: le.KernelKMeans(clusters, n_init=STARTS, random_state=0).fit(K).labels_,
        "ours, Lloyd only": lambda: (
            le.KernelKMeans(clusters, n_init=STARTS, algorithm="lloyd", random_state=0).fit(K).labels_
        ),
        "ours and the kernel": lambda: (
            le.KernelKMeans(clusters, n_init=STARTS, random_state=0).fit(rbf_kernel(X, gamma=gamma)).labels_
        ),
        "nystroem + kmeans": lambda: make_pipeline(
            Nystroem(gamma=gamma, n_components=min(300, len(X)), random_state=0),
            KMeans(clusters, n_init=STARTS, random_state=0),
        ).fit_predict(X),
        "tslearn": lambda: (
            OfTslearn(
                clusters, kernel="rbf", kernel_params={"gamma": gamma}, n_init=STARTS, max_iter=100, random_state=0
            )
            .fit(X)
            .labels_
        ),
    }
    labels = {name: work() for name, work in ways.items()}
    taken = [{name: seconds(work) for name, work in ways.items()} for _ in range(turns)]
    median = {name: statistics.median(turn[name] for turn in taken) for name in ways}
    return {
        "n": len(X),
        "clusters": clusters,
        "starts": STARTS,
        "seconds": median,
        "objective": {name: float(Partitions(K, found[None], clusters).inertia[0]) for name, found in labels.items()},
        "ours / nystroem + kmeans": statistics.median(t["ours"] / t["nystroem + kmeans"] for t in taken),
        "tslearn / ours": statistics.median(t["tslearn"] / t["ours"] for t in taken),
    }


def warming_up(x: Tensor, width: int, batch_size: int, turns: int) -> dict[str, Any]:
    """One epoch against the products that it cannot do without: forward at both layers, and both weights' gradients."""
    torch.manual_seed(0)
    net = le.models.fnn(784, width=width)
    y = torch.cat([torch.ones(len(x) // 2), torch.zeros(len(x) - len(x) // 2)])
    training = Training(x, y, "mse", epochs=1, batch_size=batch_size, seed=0)
    W, V = net[1].weight.detach(), net[3].weight.detach()
    batch = x[:batch_size].flatten(1)
    hidden, top, gradient = torch.empty(batch_size, width), torch.ones(batch_size, 1), torch.empty_like(W)

    def products() -> None:
        for _ in range(training.batches_an_epoch):
            torch.mm(batch, W.T, out=hidden)
            torch.mm(hidden, V.T)
            torch.mm(top.T, hidden)
            torch.mm(hidden.T, batch, out=gradient)

    taken = [(seconds(lambda: warm_up(net, training, 1e-6, progress=False)), seconds(products)) for _ in range(turns)]
    return {
        "points": len(x),
        "width": width,
        "batch": batch_size,
        "seconds an epoch": statistics.median(a for a, _ in taken),
        "seconds of products": statistics.median(b for _, b in taken),
        "share of products": statistics.median(b / a for a, b in taken),
    }


def verdicts(found: dict[str, Any]) -> list[tuple[str, float, str]]:
    """What was aimed at, what came out, pass or miss."""
    rows = [
        (
            "similarity: released loop / structured at least 200",
            found["similarity"]["released / structured"],
            lambda r: r >= 200,
        )
    ]
    for one in found["kernel k-means"]:
        c = f"{one['clusters']} clusters"
        best = min(one["objective"]["nystroem + kmeans"], one["objective"]["tslearn"])
        rows += [
            (f"kernel k-means, {c}: ours / nystroem at most 1.5", one["ours / nystroem + kmeans"], lambda r: r <= 1.5),
            (f"kernel k-means, {c}: tslearn / ours at least 4", one["tslearn / ours"], lambda r: r >= 4),
            (
                f"kernel k-means, {c}: objective of ours / better of theirs at most 1",
                one["objective"]["ours"] / best,
                lambda r: r <= 1 + 1e-9,
            ),
        ]
    return [(aim, value, "pass" if ok(value) else "miss") for aim, value, ok in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small and once: to see that it runs")
    parser.add_argument("--out", type=Path, default=RESULTS / "clustering-cpu.json")
    options = parser.parse_args()
    quick = options.quick
    warnings.filterwarnings("ignore", module="tslearn")
    data = le.data.load("mnist")
    pair = data.take([5, 8], per_class=50 if quick else 400)[0]
    pair = torch.cat([pair, data.take([5, 8], per_class=10 if quick else 100, split="test")[0]])
    digits = data.take(range(10), per_class=10 if quick else 100)[0]
    width = 512 if quick else 40960
    turns = 1 if quick else 5
    found: dict[str, Any] = {
        "machine": f"{torch.get_num_threads()} CPU threads",
        "load before": os.getloadavg()[0],
        "torch": version("torch"),
        "versions": {name: version(name) for name in ("numpy", "scikit-learn", "tslearn")},
        "python": platform.python_version(),
    }
    found["kernel k-means"] = [kernel_kmeans(x, c, turns) for x, c in ((pair, 2), (digits, 10))]
    found["similarity"] = similarity(pair, width, loop_rows=20)
    found["warm-up"] = [
        warming_up(torch.cat([pair, pair]), w, 50, 1 if quick else 3) for w in sorted({1024, width}, reverse=True)
    ]
    found["verdicts"] = verdicts(found)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    for aim, value, verdict in found["verdicts"]:
        print(f"{verdict:5} {value:9.4g}  {aim}")
    for line in found["warm-up"]:
        print(f"      {line['share of products']:9.2f}  warm-up, {line['width']} units: share of matrix products")


if __name__ == "__main__":
    main()
