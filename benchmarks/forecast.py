"""Does the forecast serve? Which images a fine-tune loses, forecast beforehand; and replay of those at risk.

    LOCAL_ELASTICITY_DATA=folder python benchmarks/forecast.py

A small CNN, a small vision transformer and a ResNet-18 of a quarter of the usual width learn 4000 CIFAR-10 images, five
seeds each. Eight images that a network gets
wrong are fixed by a short fine-tune. Before it, every score ranks 1000 test images by how likely they are to be lost;
after it, the AUROC among those that were right is taken. For replay, 16 of 1000 further images join the eight: none,
drawn at random, those of smallest margin, or those at risk by the forecast. Intervals (95 %) resample seeds and trials.
Figures go to benchmarks/results/forecast-cpu.json.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import local_elasticity as le
from local_elasticity.api import forecast as forecasting
from local_elasticity.models.resnet18 import ResNet18
from local_elasticity.statistics.bootstrap import draws, quantiles, reduced
from local_elasticity.statistics.ranking import auroc

RESULTS = Path(__file__).parent / "results"
TRAINED, POOL, NEW, REPLAYED = 4000, 1000, 8, 16
TRIALS, REPLAY_TRIALS = 2, 2
RATES = (0.003, 0.01, 0.03, 0.1)


class VisionTransformer(nn.Module):
    """Patches of 8 × 8, two layers of width 64."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.patches, self.places = nn.Conv2d(3, width, 8, 8), nn.Parameter(0.02 * torch.randn(1, 16, width))
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def features(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        found: Tensor = self.norm(self.body(tokens)).mean(1)
        return found

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.features(x))
        return found


class ConvNet(nn.Module):
    """Three convolutions of stride 2 and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [3, 16, 32, 64]
        self.body = nn.Sequential(
            *[part for a, b in itertools.pairwise(sizes) for part in (nn.Conv2d(a, b, 3, 2, 1), nn.ReLU())],
            nn.Flatten(),
            nn.Linear(1024, 64),
            nn.ReLU(),
        )
        self.head = nn.Linear(64, 10)

    def features(self, x: Tensor) -> Tensor:
        found: Tensor = self.body(x)
        return found

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(x))
        return found


class NarrowResNet18(ResNet18):
    """The package's ResNet-18, a quarter as wide."""

    def __init__(self) -> None:
        super().__init__(10, width=16)

    def features(self, x: Tensor) -> Tensor:
        found: Tensor = self.stages(self.pool(torch.relu(self.stem(x)))).mean((2, 3))
        return found


FORECAST = (
    "auroc",
    "rank correlation",
    "slope",
    "forecast lost",
    "count off",
    "brier of lost",
    "brier of probability",
    "in range",
    "range",
    "seconds",
    "nonlinearity",
    "total nonlinearity",
    "refused",
)
"""What is kept of a forecast."""

NETWORKS: dict[str, tuple[Callable[[], Any], int]] = {
    "CNN": (ConvNet, 8),
    "ViT": (VisionTransformer, 10),
    "ResNet-18": (NarrowResNet18, 6),
}
"""What makes each, and the epochs that it learns for."""

FINE_TUNES: dict[str, tuple[Any, int]] = {
    "SGD 0.003, 10 steps": (lambda p: torch.optim.SGD(p, lr=0.003), 10),
    "SGD 0.003, 40 steps": (lambda p: torch.optim.SGD(p, lr=0.003), 40),
    "SGD 0.001, momentum 0.9, 20 steps": (lambda p: torch.optim.SGD(p, lr=0.001, momentum=0.9), 20),
    "Adam 0.0003, 10 steps": (lambda p: torch.optim.Adam(p, lr=0.0003), 10),
}


def images() -> dict[str, tuple[Tensor, Tensor]]:
    data = le.data.load("cifar10")

    def part(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x.float() / 255 - 0.47) / 0.25, y.long()

    cuts = {"train": (0, TRAINED), "pool": (TRAINED, TRAINED + POOL), "mistakes": (TRAINED + POOL, TRAINED + 3 * POOL)}
    found = {name: part(data.x_train[a:b], data.y_train[a:b]) for name, (a, b) in cuts.items()}
    return {**found, "test": part(data.x_test, data.y_test)}


def train(net: nn.Module, x: Tensor, y: Tensor, epochs: int) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()


def fine_tuned(net: nn.Module, make: Any, x: Tensor, y: Tensor, steps: int) -> nn.Module:
    moved = copy.deepcopy(net)
    optimizer = make(moved.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(moved(x), y).backward()
        optimizer.step()
    return moved


def right(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return net(x).argmax(1) == y


def baselines(net: Any, problem: le.Problem, new: tuple[Tensor, Tensor], old: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """Scores that need no forecast, larger where an image is likelier to be lost."""
    with torch.no_grad():
        features = [F.normalize(net.features(x), dim=1) for x, _ in (old, new)]
    cosine = -le.stiffness(problem, new, old, form="cos").mean(0)
    return {"feature cosine": (features[0] @ features[1].T).amax(1).numpy(), "gradient cosine": cosine.numpy()}


def summed(problem: le.Problem, new: Any, old: Any, rate: float, steps: int) -> np.ndarray:
    """−margin after the sum of single-step responses times the number of steps, nothing else."""
    response = le.respond(problem, new, old[0], update=le.SGD(rate / NEW), engine="looped")
    outputs = response.target_before + steps * response.target_change.sum(0)
    own = outputs.gather(1, old[1][:, None])[:, 0]
    return (outputs.scatter(1, old[1][:, None], -torch.inf).amax(1) - own).numpy()


def one_trial(net: Any, new: tuple[Tensor, Tensor], old: tuple[Tensor, Tensor]) -> dict[str, dict[str, float]]:
    problem = le.Problem.of(net, "cross_entropy")
    shared = baselines(net, problem, new, old)
    found: dict[str, dict[str, float]] = {}
    for name, (make, steps) in FINE_TUNES.items():
        update = le.FromOptimizer(make(list(net.parameters())))
        simulated = le.forecast(problem, new, old, update=update, steps=steps, virtual=steps, max_virtual=steps)
        real, kept = simulated.old, simulated.old.right
        row: dict[str, float] = {"lost": int(real.lost.sum()), "right": int(kept.sum())}
        row |= {"new learned": float((simulated.new.margin_after > 0).mean()), "seconds simulated": simulated.seconds}
        scores = {"margin": -real.margin_before, "loss": real.loss_before, **shared}
        if "momentum" not in name and name.startswith("SGD"):
            scores["responses summed"] = summed(problem, new, old, update.step_size, steps)
        row |= {score: auroc(values[kept], real.lost[kept]) for score, values in scores.items()}
        for virtual in (0, 1, 3, 5):
            row |= {f"{key}, virtual={virtual}": math.nan for key in FORECAST}
            try:
                told = le.forecast(problem, new, old, update=update, steps=steps, virtual=virtual)
            except ValueError:
                row[f"refused, virtual={virtual}"] = 1.0
                continue
            check = le.ForecastCheck.of(told.old, real)
            found_here = (check.auroc, check.rank_correlation, check.slope, check.forecast_lost)
            values = (*found_here, *calibration(told, real), told.seconds)
            values = (*values, told.nonlinearity, told.total_nonlinearity, 0.0)
            row |= {f"{key}, virtual={virtual}": value for key, value in zip(FORECAST, values, strict=True)}
        found[name] = row
    return found


def calibration(told: le.Forecast, real: Any) -> tuple[float, ...]:
    """How far the number of losses is off, Brier scores, whether the range holds the number, and how wide it is."""
    kept, lost = real.right, max(1, real.lost.sum())
    brier = [np.square(guess[kept] - real.lost[kept]).mean() for guess in (told.old.lost * 1.0, told.probability)]
    low, high = told.lost_range or (math.nan, math.nan)
    inside = float(low <= lost <= high) if told.lost_range else math.nan
    return abs(told.old.lost.sum() / lost - 1), *brier, inside, (high - low) / lost


def _or_simulated(net: Any, new: Any, pool: Any, virtual: int, **options: Any) -> le.Forecast:
    """The forecast; with every step taken where it is refused."""
    try:
        return le.forecast(net, new, pool, loss="cross_entropy", virtual=virtual, **options)
    except ValueError:
        steps = options["steps"]
        return le.forecast(net, new, pool, loss="cross_entropy", virtual=steps, max_virtual=steps, **options)


def replayed(net: Any, new: Any, pool: Any, test: Any, seed: int, steps: int = 40) -> dict[str, dict[str, float]]:
    """What is forgotten and learned with 16 images replayed, by how they are chosen."""
    make = partial(torch.optim.SGD, lr=0.01)
    options = {"update": le.SGD(0.01), "steps": steps}
    told = [_or_simulated(net, new, pool, virtual, **options) for virtual in (0, 3)]
    candidates = np.flatnonzero(told[0].old.right)
    rng = np.random.default_rng(seed)
    chosen = {
        "none": np.array([], dtype=int),
        "random": rng.choice(candidates, REPLAYED, replace=False),
        "smallest margin": candidates[np.argsort(told[0].old.margin_before[candidates])[:REPLAYED]],
        "at risk, virtual=0": told[0].at_risk(REPLAYED),
        "at risk, virtual=3": told[1].at_risk(REPLAYED),
    }
    likely = [candidates[one.old.lost[candidates]] for one in told]
    drawn = likely[1] if len(likely[1]) >= REPLAYED else candidates
    chosen["drawn from those forecast lost, virtual=3"] = rng.choice(drawn, REPLAYED, replace=False)
    before = {name: right(net, *part) for name, part in (("pool", pool), ("test", test))}
    found = {}
    for name, rows in chosen.items():
        x, y = (torch.cat([a, b[torch.as_tensor(rows)]]) for a, b in zip(new, pool, strict=True))
        moved = fine_tuned(net, make, x, y, steps)
        lost = {place: before[place] & ~right(moved, *part) for place, part in (("pool", pool), ("test", test))}
        apart = lost["pool"].clone()
        apart[torch.as_tensor(np.concatenate(list(chosen.values())))] = False
        found[name] = {
            "forgotten, test": float(lost["test"].sum() / before["test"].sum()),
            "forgotten, pool never replayed": float(apart.sum() / before["pool"].sum()),
            "test accuracy": float(right(moved, *test).float().mean()),
            "new learned": float(right(moved, *new).float().mean()),
            "refused": float(np.mean([one.virtual == steps for one in told])),
        }
    return found


def violence(net: Any, new: Any, old: Any) -> list[dict[str, float]]:
    """Nonlinearity, and what the forecast is worth, at larger and larger steps, also where it would be refused."""
    rows = []
    for rate in RATES:
        options: dict[str, Any] = {"loss": "cross_entropy", "update": le.SGD(rate), "steps": 10}
        try:
            le.forecast(net, new, old, **options)
            refused = 0.0
        except ValueError:
            refused = 1.0
        allowed = forecasting.VIOLENT, forecasting.OVERSHOOT
        forecasting.VIOLENT = forecasting.OVERSHOOT = math.inf
        try:
            told = le.forecast(net, new, old, **options, simulate=True)
            assert told.simulated is not None
            check = le.ForecastCheck.of(told.old, told.simulated.old)
            found = (
                told.nonlinearity,
                told.total_nonlinearity,
                check.auroc,
                check.margin_auroc,
                check.lost / check.right,
            )
        except ValueError:  # infinite predictions
            found = math.nan, math.nan, math.nan, math.nan, math.nan
        forecasting.VIOLENT, forecasting.OVERSHOOT = allowed
        names = ("nonlinearity", "total nonlinearity", "auroc", "margin auroc", "lost")
        rows.append({"rate": rate, "refused": refused, **dict(zip(names, found, strict=True))})
    return rows


def with_interval(values: np.ndarray) -> dict[str, float]:
    """The mean over seeds and trials, [seeds, trials], and its interval; both are resampled."""
    rng = np.random.default_rng(0)
    means = reduced(values, "mean", None, *draws(rng, values.shape, 1000))
    low, high = quantiles(means[1:], 0.95)
    return {"mean": _short(means[0]), "low": _short(low), "high": _short(high)}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _told(row: dict[str, Any]) -> str:
    return "  ".join(f"{name} {value['mean']:.3g}" for name, value in row.items())


def collected(trials: list[list[dict[str, dict[str, float]]]]) -> dict[str, Any]:
    """[seed][trial][setting][name] → setting → name → mean and interval."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for setting, row in trials[0][0].items():
        for name in row:
            values = np.array([[trial[setting][name] for trial in seed] for seed in trials], dtype=float)
            found[setting][name] = with_interval(values)
    return dict(found)


def differences(trials: list[list[dict[str, dict[str, float]]]], pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Paired differences of two rows of the replay."""
    found: dict[str, Any] = {}
    for one, other in pairs:
        for name in trials[0][0][one]:
            values = np.array([[trial[one][name] - trial[other][name] for trial in seed] for seed in trials])
            found[f"{one} − {other}: {name}"] = with_interval(values)
    return found


Trials = list[dict[str, dict[str, float]]]


def of_seed(kind: str, seed: int) -> tuple[float, Trials, Trials, list[dict[str, float]]]:
    """Accuracy, forecasts, replays and larger steps of one network."""
    torch.set_num_threads(1)
    data, (make, epochs) = images(), NETWORKS[kind]
    torch.manual_seed(seed)
    net = make()
    train(net, *data["train"], epochs)
    net.eval()
    wrong = torch.nonzero(~right(net, *data["mistakes"])).flatten()
    wrong = wrong[torch.randperm(len(wrong), generator=torch.Generator().manual_seed(seed))]
    news: list[Any] = [tuple(part[rows] for part in data["mistakes"]) for rows in wrong.split(NEW)]
    forecasts = [one_trial(net, new, data["test"]) for new in news[:TRIALS]]
    replays = [
        replayed(net, new, data["pool"], data["test"], 10 * seed + trial)
        for trial, new in enumerate(news[:REPLAY_TRIALS])
    ]
    print(f"{kind}, seed {seed} is done", flush=True)
    accuracy = float(right(net, *data["test"]).float().mean())
    return accuracy, forecasts, replays, violence(net, news[0], data["test"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "forecast-cpu.json")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    began = time.perf_counter()
    asked = [(kind, seed) for kind in NETWORKS for seed in range(options.seeds)]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as workers:
        answers = list(workers.map(of_seed, *zip(*asked, strict=True)))
    found = {}
    for kind in NETWORKS:
        own = [answer for (name, _), answer in zip(asked, answers, strict=True) if name == kind]
        accuracy, forecasts, replays, steps = (list(part) for part in zip(*own, strict=True))
        pairs = [("at risk, virtual=3", "random"), ("at risk, virtual=3", "smallest margin")]
        pairs += [("at risk, virtual=0", "random"), ("drawn from those forecast lost, virtual=3", "random")]
        found[kind] = {
            "accuracy": with_interval(np.array(accuracy)[:, None]),
            "forecast": collected(forecasts),
            "replay": collected(replays),
            "replay, paired": differences(replays, pairs),
            "larger steps": [
                {name: _short(float(np.mean([seed[i][name] for seed in steps]))) for name in steps[0][i]}
                for i in range(len(RATES))
            ],
            "larger steps of every seed": [[{k: _short(v) for k, v in row.items()} for row in seed] for seed in steps],
        }
        for part in ("forecast", "replay"):
            for setting, row in found[kind][part].items():
                print(f"{kind}, {part}, {setting}: {_told(row)}", flush=True)
        print(found[kind]["larger steps"], flush=True)
    report = {
        "machine": f"{os.cpu_count()} CPU cores, {options.processes} processes of one thread",
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "seconds": round(time.perf_counter() - began),
        "networks": found,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(_plain(report), indent=1) + "\n")


def _plain(value: Any) -> Any:
    """JSON has no NaN; null stands for it."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    main()
