"""A fine-tune on eight misread digits: which others it loses, forecast beforehand, and replay of those at risk."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import local_elasticity as le
from local_elasticity.data.images import load
from local_elasticity.papers.experiment import (
    Cell,
    Experiment,
    Findings,
    Measured,
    Reading,
    Settings,
    Unit,
    Values,
    runs_of,
)
from local_elasticity.papers.smallest_effects import ANY, COUNT_CLOSE, LEARNED_ALIKE
from local_elasticity.statistics.claims import Alternatives, Claim
from local_elasticity.statistics.ranking import auroc

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Examples = tuple[Tensor, Tensor]

RATE, STEPS, REPLAY_STEPS, REPLAYED = 0.02, 20, 40, 16
"""The step size of SGD, the steps of the fine-tune without and with replay, and how many examples are replayed."""

SINGLE, VIRTUAL = "forecast", "forecast, three virtual steps"
BASELINES = (
    "margin",
    "loss",
    "cosine of features",
    "product of features",
    "cosine of gradients",
)
"""Scores that need no forecast."""

NONE, RANDOM, MARGIN, AT_RISK = "none", "random", "smallest margin", "at risk"
RANKS, FORGOTTEN, LEARNED, COUNT = "AUROC of lost", "forgotten", "new learned", "forecast lost / lost"


class Perceptron(nn.Module):
    """One hidden layer of 128 units."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU())
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(x))
        return found


class ConvNet(Perceptron):
    """Two convolutions of stride 2 and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(784, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)


NETWORKS: dict[str, Callable[[], Perceptron]] = {"perceptron": Perceptron, "CNN": ConvNet}


def _over(row: str, one: str, others: tuple[str, ...], sign: int = 1) -> Callable[[Values], Alternatives]:
    """In every network, one column less each of the others; with −1 the other way round."""
    return lambda values: [
        {
            f"{network}, {other}": sign * (values.of(f"{network}: {row}", one) - values.of(f"{network}: {row}", other))
            for network in NETWORKS
            for other in others
        }
    ]


def _forgets_less(name: str, than: str, other: str) -> Claim:
    """Replay at risk against another replay of as many digits."""
    return Claim(
        name,
        f"Replay of the digits at risk forgets less than replay of {than}",
        "ours",
        f"share of unseen digits forgotten, {other} less at risk",
        _over(FORGOTTEN, AT_RISK, (other,), sign=-1),
        ANY,
        ours=True,
    )


CLAIMS = (
    Claim(
        "ranks",
        "Forecast from single steps, the order in which digits are lost is better than by any score that needs none",
        "ours",
        "AUROC of the forecast less that of a score",
        _over(RANKS, SINGLE, BASELINES),
        ANY,
        ours=True,
    ),
    Claim(
        "virtual",
        "Three virtual steps rank better than none",
        "ours",
        "difference of AUROC",
        _over(RANKS, VIRTUAL, (SINGLE,)),
        ANY,
        ours=True,
    ),
    Claim(
        "count",
        "The number of losses that is forecast is right to within a quarter",
        "ours",
        "forecast number / real number",
        lambda values: [{network: values.of(f"{network}: {COUNT}", SINGLE) for network in NETWORKS}],
        COUNT_CLOSE,
        "within",
        scale="log",
        ours=True,
    ),
    _forgets_less("random", "as many random ones", RANDOM),
    _forgets_less("margins", "those of smallest margin", MARGIN),
    Claim(
        "learned",
        "The new digits are learned as well as with random replay, to within five points",
        "ours",
        "share of new digits learned, at risk less random",
        _over(LEARNED, AT_RISK, (RANDOM,)),
        LEARNED_ALIKE,
        "within",
        ours=True,
    ),
)


class ForecastOfDigits(Experiment):
    name = "forecast/digits"
    title = "Which digits a fine-tune on eight mistakes loses, forecast beforehand; replay of those at risk"
    claims = CLAIMS
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"trained": 300, "old": 150, "candidates": 100, "epochs": 4, "new": 4, "draws": 1},
        "small": {"trained": 1500, "old": 1000, "candidates": 500, "epochs": 6, "new": 8, "draws": 3},
        "paper": {"trained": 20_000, "old": 5000, "candidates": 5000, "epochs": 6, "new": 8, "draws": 5},
    }

    def parts(self, settings: Settings) -> list[str]:
        return list(NETWORKS)

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        with torch.random.fork_rng():
            torch.manual_seed(unit.seed)
            parts = _parts(settings, device)
            net = _trained(NETWORKS[unit.part]().to(device), parts["trained"], settings["epochs"])
            wrong = torch.nonzero(~_right(net, parts["mistakes"])).flatten()
            draws = wrong[torch.randperm(len(wrong), device=wrong.device)].split(settings["new"])[: settings["draws"]]
            rows = []
            for rows_of_new in draws:
                new = _take(parts["mistakes"], rows_of_new)
                rows.append({**_ranked(net, new, parts["old"]), **_replayed(net, new, parts)})
        accuracy = float(_right(net, parts["old"]).float().mean())
        return {"accuracy": accuracy, **{key: _mean_over([row[key] for row in rows]) for key in rows[0]}}

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        return Findings(_cells(measured), (), {"digits": _draw(measured)})


def _parts(settings: Settings, device: str) -> dict[str, Examples]:
    """Digits to learn, digits among which mistakes are looked for, old digits that are read, and candidates for replay,
    in an order of each seed."""
    images = load("mnist")
    x = (images.x_train.float().reshape(-1, 1, 28, 28) / 255 - 0.13) / 0.31
    y = images.y_train.long()
    sizes = [settings[name] for name in ("trained", "old", "candidates")]
    order = torch.randperm(len(y))[: sum(sizes) + 4 * settings["old"]]
    cuts = order.split([*sizes, len(order) - sum(sizes)])
    return {
        name: (x[rows].to(device), y[rows].to(device))
        for name, rows in zip(("trained", "old", "candidates", "mistakes"), cuts, strict=True)
    }


def _trained(net: Perceptron, examples: Examples, epochs: int) -> Perceptron:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(examples[1])).split(50):
            _step(net, optimizer, _take(examples, rows))
    return net.eval()


def _step(net: nn.Module, optimizer: torch.optim.Optimizer, examples: Examples) -> None:
    optimizer.zero_grad()
    F.cross_entropy(net(examples[0]), examples[1]).backward()
    optimizer.step()


def _fine_tuned(net: nn.Module, examples: Examples, steps: int) -> nn.Module:
    moved = copy.deepcopy(net)
    optimizer = torch.optim.SGD(moved.parameters(), RATE)
    for _ in range(steps):
        _step(moved, optimizer, examples)
    return moved


def _right(net: nn.Module, examples: Examples) -> Tensor:
    with torch.no_grad():
        return net(examples[0]).argmax(1) == examples[1]


def _take(examples: Examples, rows: Any) -> Examples:
    x, y = examples
    rows = torch.as_tensor(rows, device=y.device)
    return x[rows], y[rows]


def _ranked(net: Perceptron, new: Examples, old: Examples) -> dict[str, dict[str, float]]:
    """AUROC of every score among the old examples that are right, and how many losses are forecast."""
    problem = le.Problem.of(net, "cross_entropy")
    options: dict[str, Any] = {"update": le.SGD(RATE), "steps": STEPS}
    told = {name: le.forecast(problem, new, old, virtual=v, **options) for name, v in ((SINGLE, 0), (VIRTUAL, 3))}
    after = _right(_fine_tuned(net, new, STEPS), old).cpu().numpy()
    seen = told[SINGLE].old
    kept, lost = seen.right, ~after[seen.right]
    with torch.no_grad():
        features, others = net.body(old[0]), net.body(new[0])
    scores = {
        "margin": -seen.margin_before,
        "loss": seen.loss_before,
        "cosine of features": (F.normalize(features) @ F.normalize(others).T).amax(1).cpu().numpy(),
        "product of features": (features @ others.T).amax(1).cpu().numpy(),
        "cosine of gradients": -le.stiffness(problem, new, old, form="cos").mean(0).cpu().numpy(),
        **{name: -one.old.margin_after for name, one in told.items()},
    }
    counts = {name: float(one.old.lost[kept].sum()) / max(1, int(lost.sum())) for name, one in told.items()}
    ranks = {name: auroc(np.asarray(score)[kept], lost) for name, score in scores.items()}
    return {RANKS: ranks, COUNT: counts, "lost": {"of those right": float(lost.mean())}}


def _replayed(net: Perceptron, new: Examples, parts: Mapping[str, Examples]) -> dict[str, dict[str, float]]:
    """What is forgotten and learned, by how the replayed examples are chosen."""
    pool, old = parts["candidates"], parts["old"]
    told = le.forecast(net, new, pool, loss="cross_entropy", update=le.SGD(RATE), steps=REPLAY_STEPS)
    candidates = np.flatnonzero(told.old.right)
    by_margin = candidates[np.argsort(told.old.margin_before[candidates])]
    chosen = {
        NONE: candidates[:0],
        RANDOM: candidates[torch.randperm(len(candidates)).numpy()[:REPLAYED]],
        MARGIN: by_margin[:REPLAYED],
        AT_RISK: np.asarray(told.at_risk(REPLAYED)),
    }
    before = _right(net, old)
    found: dict[str, dict[str, float]] = {FORGOTTEN: {}, LEARNED: {}}
    for name, rows in chosen.items():
        together = tuple(torch.cat(both) for both in zip(new, _take(pool, rows), strict=True))
        moved = _fine_tuned(net, (together[0], together[1]), REPLAY_STEPS)
        found[FORGOTTEN][name] = float((before & ~_right(moved, old)).sum() / before.sum())
        found[LEARNED][name] = float(_right(moved, new).float().mean())
    return found


def _mean_over(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def _cells(measured: Mapping[Unit, Measured]) -> list[Cell]:
    cells = []
    for part in NETWORKS:
        runs = runs_of(measured, part)
        for key in (RANKS, COUNT, FORGOTTEN, LEARNED, "lost"):
            for name in runs[0][key] if runs else ():
                values = tuple(run[key][name] for run in runs)
                cells.append(Cell(f"{part}: {key}", name, None, values, scale="log" if key == COUNT else "linear"))
        cells.append(Cell(f"{part}: accuracy", "before", None, tuple(run["accuracy"] for run in runs), scale="linear"))
    return cells


def _draw(measured: Mapping[Unit, Measured]) -> Figure:
    """AUROC of every score, and the share forgotten by what is replayed, a dot for each seed."""
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, STYLE, TWO_COLUMNS, figure

    panels = {RANKS: (SINGLE, VIRTUAL, *BASELINES), FORGOTTEN: (AT_RISK, MARGIN, RANDOM, NONE)}
    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 2.8)
        for axes, (key, names) in zip(made.subplots(1, 2), panels.items(), strict=True):
            for colour, part in zip(COLOURS, NETWORKS, strict=False):
                runs = runs_of(measured, part)
                for place, name in enumerate(names):
                    values = [run[key][name] for run in runs]
                    shift = 0.15 if part == "CNN" else -0.15
                    axes.plot(values, [place + shift] * len(values), ".", color=colour, alpha=0.4)
                    label = part if place == 0 else None
                    axes.plot(np.mean(values), place + shift, "|", ms=10, color=colour, label=label)
            axes.set_yticks(range(len(names)), names)
            axes.invert_yaxis()
            axes.set_xlabel("AUROC of “will be lost”" if key == RANKS else "share of right digits forgotten")
        made.axes[0].legend()
    return made
