"""Figures 3, 4 and 5: S_rel in regression, against distance and over time, by initialisation and activation.

x ~ N(0, I) and y = ‖x‖₁, a feed-forward net on the squared loss, one fixed target x′ and many sources x_i, each with
its own denominator. The paper's table of hyper-parameters is lost from its text; chosen here: 5 inputs, two hidden
layers of 100 units, 1000 training points, plain SGD in batches of 50 at the rate 1e-3, probed with a step of that rate.
The part `flow` trains at a quarter of the rate for four times as many steps, to see whether S_rel has a limit in
continuous time (§1.4 C).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

import local_elasticity as le
from local_elasticity.papers.dan2021dynamics.regression_claims import CLAIMS, GRID, cells
from local_elasticity.papers.experiment import (
    Curve,
    Experiment,
    Findings,
    Measured,
    Reading,
    Settings,
    Unit,
    runs_of,
)
from local_elasticity.statistics.locality import quartiles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INPUTS, WIDTH, TRAINED_ON, TESTED_ON = 5, 100, 1000, 2000
RATE, BATCH = 1e-3, 50
FLOW = "flow"
SLOWER = 4
"""By how much the rate is smaller, and the steps more, in the part `flow`."""

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


class Regression(Experiment):
    name = "dan2021dynamics/regression"
    title = "S_rel in regression against distance and over time, by initialisation and activation"
    claims = CLAIMS
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"times": [5, 15], "steps": 16, "probes": 6, "sources": 8},
        "small": {"times": [100, 200, 400, 800, 1600, 2400], "steps": 2500, "probes": 60, "sources": 60},
        "paper": {"times": [100, 200, 400, 800, 1600, 2400], "steps": 2500, "probes": 100, "sources": 100},
    }

    def parts(self, settings: Settings) -> list[str]:
        return [*GRID, FLOW]

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        if unit.part == FLOW:
            fast = watched(GRID[0], settings, unit.seed, device)
            slow = watched(GRID[0], settings, unit.seed, device, slower=SLOWER)
            return {"fast": fast, "slow": slow}
        return watched(unit.part, settings, unit.seed, device)

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        grid = {part: runs_of(measured, part) for part in GRID}
        flow = [found for unit, found in measured.items() if unit.part == FLOW]
        figures = {"fig3": _draw_distance(grid), "fig4-5": _draw_time(grid)}
        return Findings(list(cells(grid, flow)), _curves(grid), figures)


def data(seed: int, device: str) -> dict[str, Tensor]:
    """Training and test points, the sources and the target; no device changes what is drawn."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"train": TRAINED_ON, "test": TESTED_ON, "sources": 200, "target": 1}
    return {name: torch.randn(size, INPUTS, generator=generator).to(device) for name, size in sizes.items()}


def network(part: str, seed: int, device: str) -> nn.Sequential:
    """PyTorch's own initialisation, or He-normal weights with zero biases."""
    start, activation = part.split()
    act = ACTIVATIONS[activation]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(INPUTS, WIDTH), act(), nn.Linear(WIDTH, WIDTH), act(), nn.Linear(WIDTH, 1))
        for layer in net:
            if start == "he-normal" and isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
    return net.to(device)


def watched(part: str, settings: Settings, seed: int, device: str, *, slower: int = 1) -> dict[str, Any]:
    """Train and probe: S_rel of all sources at the listed times, of two sources over time, and both risks."""
    points, net = data(seed, device), network(part, seed, device)
    x, sources = points["train"], points["sources"][: settings["sources"]]
    spread = np.linspace(1, settings["steps"], settings["probes"]).round().astype(int).tolist()
    due = sorted({*settings["times"], *spread})
    watched_points = torch.cat([sources, points["target"]])  # as sources and targets at once: own changes in one pass
    monitor = le.Monitor(
        net,
        (watched_points, labels(watched_points)),
        loss="mse",
        update=le.SGD(RATE),
        schedule=[slower * time for time in due],
        budget=None,
        engine="structured",
        memory=None,
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE / slower)
    order = torch.Generator().manual_seed(seed)
    risks: dict[str, list[float]] = {"empirical": [], "population": []}
    rows = torch.empty(0)
    for step in range(1, slower * settings["steps"] + 1):
        if (step - 1) % slower == 0:
            rows = torch.randperm(len(x), generator=order)[:BATCH].to(device)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[rows])[:, 0], labels(x[rows])).backward()
        optimizer.step()
        if monitor.step(step):
            with torch.no_grad():
                for name, at in (("empirical", x), ("population", points["test"])):
                    risks[name].append(round(float(nn.functional.mse_loss(net(at)[:, 0], labels(at))), 6))
    distance = (sources - points["target"]).norm(dim=1).cpu().numpy()
    S = np.stack([probe.similarity["relative"][:-1, -1] for probe in monitor.history])
    early, late = S[: max(1, len(S) // 10)], S[-max(1, len(S) // 4) :]
    near, far = (int(np.argsort(distance)[round(q * (len(distance) - 1))]) for q in (0.1, 0.9))
    return {
        "times": settings["times"],
        "distance": distance.round(5).tolist(),
        "S": [_plain(S[due.index(time)]) for time in settings["times"]],
        "t": due,
        "near": _plain(S[:, near]),
        "far": _plain(S[:, far]),
        "all": [_plain(row) for row in quartiles(S)],
        "rises": float(np.mean(np.nanmean(late, 0) > np.nanmean(early, 0))),
        "rises strictly": float(np.mean(np.nanmin(late, 0) > np.nanmax(early, 0))),
        **risks,
    }


def labels(x: Tensor) -> Tensor:
    return x.abs().sum(1)


def _plain(values: np.ndarray) -> list[float | None]:
    return [round(float(value), 5) if np.isfinite(value) else None for value in values]


def _curves(grid: Mapping[str, list[Measured]]) -> list[Curve]:
    curves = []
    for part, runs in grid.items():
        for name in ("near", "far") if runs else ():
            values = np.array([run[name] for run in runs], dtype=float)
            mean, sd = np.nanmean(values, 0), np.nanstd(values, 0)
            band = [(mean + sign * sd).round(5).tolist() for sign in (0, -1, 1)]
            curves.append(Curve(f"{part}: {name} source", runs[0]["t"], *band))
    return curves


def _draw_distance(grid: Mapping[str, list[Measured]]) -> Figure:
    """Figure 3 for each part of the grid, the first seed's sources at all times."""
    import matplotlib as mpl

    from local_elasticity.report.figures import STYLE, TWO_COLUMNS, figure

    largest = max(np.nanmax(np.array(runs[0]["S"], dtype=float)) for runs in grid.values())
    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 2.3)
        for axes, (part, runs) in zip(made.subplots(1, len(grid), sharey=True), grid.items(), strict=True):
            run = runs[0]
            colours = mpl.colormaps["viridis"](np.linspace(0, 0.9, len(run["times"])))
            for time, S, colour in zip(run["times"], run["S"], colours, strict=True):
                values = np.array(S, dtype=float)
                axes.scatter(run["distance"], values, s=3, color=colour, label=f"t = {time}", linewidths=0)
            axes.set(title=part, xlabel="$\\|x_i - x'\\|$", ylim=(0, min(3, 1.1 * largest)))
        made.axes[0].set_ylabel("$S_{rel}(x_i, x')$")
        made.legend(*made.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, markerscale=2)
    return made


def _draw_time(grid: Mapping[str, list[Measured]]) -> Figure:
    """Figures 4 and 5: two sources over time, mean and standard deviation over seeds, and the empirical risk."""
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, STYLE, TWO_COLUMNS, figure

    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 3.4)
        panels = made.subplots(2, len(grid), sharex=True, sharey="row")
        for (above, below), (part, runs) in zip(panels.T, grid.items(), strict=True):
            lines = ((above, "near"), (above, "far"), (below, "empirical"), (below, "population"))
            for (axes, name), colour in zip(lines, COLOURS, strict=False):
                values = np.array([run[name] for run in runs], dtype=float)
                mean, sd = np.nanmean(values, 0), np.nanstd(values, 0)
                axes.plot(runs[0]["t"], mean, color=colour, label=name)
                axes.fill_between(runs[0]["t"], mean - sd, mean + sd, color=colour, alpha=0.2, linewidth=0)
            above.set_title(part)
            below.set(xlabel="t", yscale="log")
        panels[0, 0].set_ylabel("$S_{rel}$")
        panels[1, 0].set_ylabel("risk")
        for axes in panels[:, 0]:
            axes.legend()
    return made
