"""Scale: clustering that is linear in n, blocks on disk and on Ray, as ratios within one run.

    python benchmarks/scale.py          # on the CPU, a few minutes; all cores
    python benchmarks/scale.py --gpu    # the rows for a GPU, about a minute

Clustering is of the digits 6 and 8 by the two-layer net of He & Su, warmed up for two epochs beside the digit 5: a pair
whose clusters are clear. (Of 5 and 8 or 4 and 9 the best clusters of the full kernel are not the digits, and accuracies
of near optima differ at will.) Figures go to benchmarks/results/scale-<device>.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from ways import environment, peak_memory, seconds

import local_elasticity as le
from local_elasticity.scale.cost import Cost

RESULTS = Path(__file__).parent / "results"
EPOCHS, TURNS = 2, 2
SIDES = 2048, 512
SMALL = le.SGD(1e-6)
"""A step that flips few units, so that all blocks cost alike."""

Rows = list[list[Any]]


def learned(width: int, per_class: int, device: str) -> tuple[Any, Any, Any]:
    """Warmed up and clustered by the full kernel: (estimator, its images, their digits)."""
    digits = le.data.load("mnist")
    x, kinds = digits.take([6, 8], per_class=per_class)
    others = digits.take([5], per_class=2 * per_class)[0].numpy()
    model = le.LocalElasticityClustering(2, network=f"fnn-{width}", epochs=EPOCHS, random_state=0, device=device)
    return model.fit(x.numpy(), auxiliary=others), x.numpy(), kinds


def by_landmarks(net: nn.Module, x: np.ndarray, device: str, n_clusters: int = 2) -> Any:
    """Clustered with the weights as they are."""
    model = le.LocalElasticityClustering(
        n_clusters, network=net, init="random", approximation="landmarks", random_state=0, device=device
    )
    return model.fit(x, auxiliary=x[:10])


def images(classes: list[int], n: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """All images of some digits, or the first n of the dataset."""
    digits = le.data.load("mnist")
    parts = [digits.take([kind], per_class=int((digits.y_train == kind).sum())) for kind in classes]
    x, y = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    order = np.random.default_rng(0).permutation(len(x))[:n]
    return x[order], y[order]


def one_pair(results: dict[str, Any]) -> Rows:
    """The paper's width on all images of a pair, and against the full kernel on 2000 of them."""
    full, x, kinds = learned(40960, 1000, "cpu")
    near = by_landmarks(full.network_, x, "cpu")
    accuracy = {name: 100 * le.best_match_accuracy(m.labels_, kinds) for name, m in (("full", full), ("near", near))}
    everything, classes = images([6, 8])
    taken = {}
    took = seconds(lambda: taken.update(model=by_landmarks(full.network_, everything, "cpu")))
    found = taken["model"]
    results["pair"] = {
        "images": len(everything),
        "seconds": took,
        "accuracy of the full kernel on 2000": accuracy["full"],
        "accuracy of landmarks on the same 2000": accuracy["near"],
        "accuracy on all": 100 * le.best_match_accuracy(found.labels_, classes),
        "error against the full kernel": found.approximation_error_,
    }
    apart = abs(accuracy["full"] - accuracy["near"])
    return [
        aim(f"{len(everything)} images, 40960 units, landmarks: at most 300 s", took, took < 300),
        aim("the same, peak memory GiB under 4", peak_memory("cpu"), peak_memory("cpu") < 4),
        aim("accuracy on 2000 images, points from the full kernel: at most 1", apart, apart <= 1),
    ]


def growth(results: dict[str, Any], width: int = 8192) -> Rows:
    """How the time of clustering by landmarks grows with n."""
    x, _ = images(list(range(10)), 16000)
    net = le.models.fnn(784, width=width)
    by_landmarks(net, x[:1000], "cpu")
    sizes = [2000, 4000, 8000, 16000]
    taken = [seconds(lambda n=n: by_landmarks(net, x[:n], "cpu")) for n in sizes]
    slope = float(np.polyfit(np.log(sizes), np.log(taken), 1)[0])
    results["growth"] = {"n": sizes, "seconds": taken, "units": width}
    return [aim("n = 2000 … 16000 by landmarks: exponent at most 1.1", slope, slope <= 1.1)]


def stored(results: dict[str, Any], n: int = 4096) -> Rows:
    """The same matrix in memory at once, and in a store, in blocks of the default side and in small ones."""
    torch.manual_seed(0)
    problem = le.Problem.of(le.models.fnn(784, width=1024, outputs=10), "cross_entropy")
    x, y = images(list(range(10)), n)
    pair = torch.from_numpy(x), torch.from_numpy(y).long()

    def run(store: Path | None = None, side: int = 0) -> None:
        options: dict[str, Any] = {"block": side, "store": store} if store else {}
        le.similarity(problem, pair, measure="kernel", update=SMALL, engine="structured", progress=False, **options)

    def turn() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            stores = {f"blocks of {side}": partial(run, Path(folder) / f"{side}.zarr", side) for side in SIDES}
            return {name: seconds(way) for name, way in {"in memory": run, **stores}.items()}

    run()
    turns = [turn() for _ in range(TURNS)]
    ratios = {side: statistics.median(one[f"blocks of {side}"] / one["in memory"] for one in turns) for side in SIDES}
    results["stored"] = {"n": n, "seconds": turns, "ratios": ratios}
    return [aim("blocks to disk / in memory, 10 outputs: at most 1.15", ratios[SIDES[0]], ratios[SIDES[0]] <= 1.15)]


def on_ray(results: dict[str, Any], n: int = 2048, side: int = 256) -> Rows:
    """The same blocks in one process with two threads, and on two workers with one each."""
    torch.manual_seed(0)
    net = le.models.fnn(784, width=2048, outputs=10)
    x, y = images(list(range(10)), n)
    pair = torch.from_numpy(x), torch.from_numpy(y).long()

    def run(count: int) -> None:
        some = tuple(part[:count] for part in pair)
        problem = le.Problem.of(net, "cross_entropy")
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "s.zarr"
            options = {"measure": "kernel", "update": SMALL, "engine": "structured", "progress": False}
            le.similarity(problem, some, store=store, block=side, **options)

    run(side)
    here = [seconds(lambda: run(n))]
    with le.workers("local", count=torch.get_num_threads()):
        run(2 * side)
        there = [seconds(lambda: run(n)) for _ in range(2)]
    here.append(seconds(lambda: run(n)))
    ratio = statistics.mean(there) / statistics.mean(here)
    results["ray"] = {"n": n, "block": side, "seconds in one process": here, "seconds on two workers": there}
    return [aim("two workers of Ray / one process with two threads: at most 1.15", ratio, ratio <= 1.15)]


def cost(results: dict[str, Any]) -> Rows:
    """A cost model fitted to small measurements, asked about a larger one."""
    problem = le.Problem.of(le.models.fnn(784, width=8192), "mse")
    x, y = images([6, 8], 4096)
    pair = torch.from_numpy(x), torch.from_numpy(y).float()
    model = Cost.measure(problem, pair, update=le.SGD(1e-3))
    n = 4096

    def whole() -> None:
        le.respond(problem, (pair[0][: n // 2], pair[1][: n // 2]), pair[0], progress=False)

    whole_seconds = seconds(whole)
    predicted = model.seconds(n // 2, n)
    ratio = predicted / whole_seconds
    results["cost"] = {"model": vars(model), "predicted": predicted, "measured": whole_seconds, "n": n // 2, "m": n}
    return [aim("cost model: predicted / measured within a factor of 1.5", ratio, abs(math.log(ratio)) < math.log(1.5))]


def on_gpu(results: dict[str, Any]) -> Rows:
    """All of MNIST after a warm-up."""
    full, x, kinds = learned(40960, 1000, "cuda")
    by_landmarks(full.network_, x, "cuda")
    everything, classes = images(list(range(10)))
    taken: dict[str, Any] = {}
    took = seconds(lambda: taken.update(model=by_landmarks(full.network_, everything, "cuda", n_clusters=10)))
    near = by_landmarks(full.network_, x, "cuda")
    apart = 100 * abs(le.best_match_accuracy(near.labels_, kinds) - le.best_match_accuracy(full.labels_, kinds))
    results["all digits"] = {
        "images": len(everything),
        "seconds": took,
        "peak memory GiB": peak_memory("cuda"),
        "accuracy": 100 * le.best_match_accuracy(taken["model"].labels_, classes),
        "error against the full kernel": taken["model"].approximation_error_,
    }
    return [
        aim(f"{len(everything)} images, 40960 units, landmarks: at most 60 s", took, took < 60),
        aim("accuracy on 2000 images of a pair, points from the full kernel: at most 1", apart, apart <= 1),
    ]


def aim(what: str, value: float, reached: bool) -> list[Any]:
    verdict = "pass" if reached else "miss"
    print(f"{what}: {value:.3g} ({verdict})", flush=True)
    return [what, value, verdict]


PARTS: dict[str, dict[str, Callable[[dict[str, Any]], Rows]]] = {
    "cpu": {"pair": one_pair, "growth": growth, "stored": stored, "ray": on_ray, "cost": cost},
    "cuda": {"all digits": on_gpu},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--only", nargs="*", help="some of the parts; the others stay as they are in the results")
    chosen = parser.parse_args()
    device = "cuda" if chosen.gpu else "cpu"
    file = RESULTS / f"scale-{device}.json"
    before = json.loads(file.read_text()) if chosen.only and file.exists() else {}
    results: dict[str, Any] = {**before, **environment(device)}
    aims: dict[str, Rows] = results.setdefault("aims", {})
    for name, part in PARTS[device].items():
        if not chosen.only or name in chosen.only:
            aims[name] = part(results)
            results["verdicts"] = [row for one in PARTS[device] for row in aims.get(one, [])]
            file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
