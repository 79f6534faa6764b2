"""Figure 1 (b), (c), (e), (f): relative similarity against geodesic distance, on the torus and the folded boxes.

The text: 100 points, half of each colour, full batch, SGD at rate 1e-5, 20000 epochs, squared loss, two-layer nets of
40960 units on the torus and three-layer nets of 8192 on the boxes, ReLU and linear. S_rel among the blue points is
correlated with their geodesic distance; the published figures are those of the whole matrix, diagonal included.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

import local_elasticity as le
from local_elasticity.data.manifolds import Manifold, manifold
from local_elasticity.models.small import fnn
from local_elasticity.papers.experiment import Cell, Claim, Experiment, Findings, Measured, Reading, Settings, Unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = {
    ("torus", "relu"): -0.97,
    ("torus", "linear"): -0.48,
    ("folded_boxes", "relu"): -0.92,
    ("folded_boxes", "linear"): -0.14,
}
"""Pearson's correlations, from the caption."""

PAPER_MEAN = {("torus", "relu"): 0.44, ("torus", "linear"): 0.68}
"""Mean S_rel on the torus, from A.4."""

LAYERS = {"torus": 2, "folded_boxes": 3}
PROBE = 1e-6
"""Step size of the probing step, as in the released code."""

LOCAL = Claim(
    "local",
    "S_rel falls with geodesic distance for ReLU nets: they are locally elastic (Fig. 1 b, e)",
)
NOT_LINEAR = Claim("not_linear", "Linear nets of the same size show no such monotonic relation (Fig. 1 c, f)")


class Fig1(Experiment):
    name = "he2020local/fig1"
    title = "S_rel against geodesic distance on the torus and the folded boxes, ReLU and linear nets"
    claims = (LOCAL, NOT_LINEAR)
    readings = ("as_defined", "as_released")
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"torus": 256, "folded_boxes": 64, "epochs": 100},
        "small": {"torus": 4096, "folded_boxes": 1024, "epochs": 4000},
        "paper": {"torus": 40960, "folded_boxes": 8192, "epochs": 20000},
    }

    def parts(self, settings: Settings) -> list[str]:
        return [f"{name} {activation}" for name, activation in PAPER]

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        name, activation = unit.part.split()
        points = manifold(name, seed=unit.seed, reading="as_released" if reading == "as_released" else "as_defined")
        nets = {kind: _net(name, kind, settings[name], unit.seed).to(device) for kind in ("relu", "linear")}
        rate = min(stable_rate(net, points) for net in nets.values())
        accuracy = train(nets[activation], points, rate, settings["epochs"])
        S = similarity_among_blue(nets[activation], points)
        distance = points.geodesic.numpy()
        apart = ~np.eye(len(S), dtype=bool)
        return {
            "rate": rate,
            "accuracy": accuracy,
            "correlation": _correlation(S, distance),
            "correlation without diagonal": _correlation(S[apart], distance[apart]),
            "mean": float(np.nanmean(S)),
            "unresolved": float(np.isnan(S).mean()),
            "S": S.round(6).tolist(),
            "distance": distance.round(6).tolist(),
        }

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        cells = []
        for key, paper in PAPER.items():
            cells.append(_cell(measured, key, "correlation", paper, tolerance=0.005))
            cells.append(_cell(measured, key, "correlation without diagonal", None))
        cells += [_cell(measured, key, "mean", paper, tolerance=0.005) for key, paper in PAPER_MEAN.items()]
        return Findings(cells, _judge(measured), figures={"fig1": _draw(measured)})


def _net(name: str, activation: str, width: int, seed: int) -> nn.Sequential:
    """PyTorch's own initialisation, seeded without touching the global generator."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return fnn(3, width=width, layers=LAYERS[name], activation=activation)


def stable_rate(net: nn.Module, points: Manifold) -> float:
    """The largest rate at which full-batch training on the squared loss surely does not diverge at the start,
    1/λ_max(2Θ/n); at most the paper's 1e-5 for its widths.
    """
    device = next(net.parameters()).device
    theta = le.ntk(le.Problem.of(net, "mse"), points.points.float().to(device)).double()
    return float(1 / torch.linalg.eigvalsh(2 * theta / len(theta)).max())


def train(net: nn.Module, points: Manifold, rate: float, epochs: int) -> float:
    """Full-batch SGD on the squared loss; the accuracy at the end."""
    device = next(net.parameters()).device
    x, y = points.points.float().to(device), points.labels.float().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    for _ in range(epochs):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(net(x)[:, 0], y).backward()
        optimizer.step()
    with torch.no_grad():
        return float(((net(x)[:, 0] > 0.5) == (y > 0.5)).double().mean())


def similarity_among_blue(net: nn.Module, points: Manifold) -> np.ndarray:
    """S_rel of every blue point with every other, [50, 50]."""
    device = next(net.parameters()).device
    blue = points.blue.float().to(device)
    problem = le.Problem.of(copy.deepcopy(net), "mse")
    response = le.respond(problem, (blue, torch.ones(len(blue), device=device)), update=le.SGD(PROBE), progress=False)
    S: Tensor = le.relative(response).double().cpu()
    return S.numpy()


def _correlation(S: np.ndarray, distance: np.ndarray) -> float:
    """Pearson's, over the pairs that have a value."""
    known = np.isfinite(S)
    return float(np.corrcoef(S[known], distance[known])[0, 1])


def _values(measured: Mapping[Unit, Measured], key: tuple[str, str], what: str) -> tuple[float, ...]:
    return tuple(found[what] for unit, found in measured.items() if unit.part == " ".join(key))


def _cell(
    measured: Mapping[Unit, Measured], key: tuple[str, str], what: str, paper: float | None, tolerance: float = 0.0
) -> Cell:
    name, activation = key
    return Cell(f"{name}: {what}", activation, paper, _values(measured, key, what), tolerance)


def _judge(measured: Mapping[Unit, Measured]) -> list[Claim]:
    """A claim holds where it holds on both manifolds at every seed, and depends where only at some."""
    what = "correlation without diagonal"
    relu = {name: _values(measured, (name, "relu"), what) for name in LAYERS}
    linear = {name: _values(measured, (name, "linear"), what) for name in LAYERS}
    local = [value < -0.8 for values in relu.values() for value in values]
    weaker = [b > a + 0.2 for name in LAYERS for a, b in zip(relu[name], linear[name], strict=True)]
    effect = float(np.mean([v for values in relu.values() for v in values]))
    gap = float(np.mean([b - a for name in LAYERS for a, b in zip(relu[name], linear[name], strict=True)]))
    said = "; ".join(f"{name}: ReLU {np.mean(relu[name]):.2f}, linear {np.mean(linear[name]):.2f}" for name in LAYERS)
    evidence = f"correlation without the diagonal, mean over seeds: {said}"
    return [
        LOCAL.judged(local, effect, f"below −0.8 in {sum(local)} of {len(local)} runs; {evidence}"),
        NOT_LINEAR.judged(weaker, gap, f"weaker by 0.2 or more in {sum(weaker)} of {len(weaker)} runs; {evidence}"),
    ]


def _draw(measured: Mapping[Unit, Measured]) -> Figure:
    """Four panels as in the paper, the first seed's points, the mean correlation over seeds in the title."""
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, STYLE, TWO_COLUMNS, figure

    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 4.2)
        panels = made.subplots(2, 2, sharey=True)
        for axes, key in zip(panels.flat, PAPER, strict=True):
            found = next(found for unit, found in measured.items() if unit.part == " ".join(key))
            correlation = np.mean(_values(measured, key, "correlation"))
            axes.scatter(found["distance"], found["S"], s=2, alpha=0.5, color=COLOURS[key[1] == "linear"], linewidths=0)
            axes.set_title(f"{key[0].replace('_', ' ')}, {key[1]}: correlation {correlation:.2f} (paper {PAPER[key]})")
            axes.set(xlabel="geodesic distance", ylabel="relative similarity $S_{rel}$", ylim=(0, None))
    return made
