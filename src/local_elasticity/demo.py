"""The demonstration: train a small net on real digits, then see whose predictions a step on each image would move."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
import xarray as xr
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID, track
from rich.table import Table
from torch import Tensor, nn

import local_elasticity as le
from local_elasticity.models.small import fnn
from local_elasticity.report.figures import STYLE, TWO_COLUMNS, draw_similarity, figure, save_figure

ONE_SIDE, OTHER_SIDE = (3, 6), (4, 7)
"""The net learns to tell 3s and 6s from 4s and 7s; it is never told a 3 from a 6."""

TRAIN_PER_DIGIT, HELD_OUT_PER_DIGIT = 400, 50
WIDTH, EPOCHS, BATCH, RATE = 512, 12, 50, 0.02
STEP_SIZE = 1e-3
WATCHED_PER_DIGIT, WATCHED_RATE, WATCHED_WIDTH = 15, 0.02, 128
WATCHED_AT = (0, 2, 5, 10, 15, 20, 30, 40, 60, 80, 100, 130, 160, 200, 300, 400)
TEN = range(10)
RELATIONS = ("same digit", "other digit, same side", "other side")


@dataclass(frozen=True)
class DemoDigits:
    """Images and two labels each: the digit, and the side that the net is trained on."""

    images: Tensor
    digits: Tensor

    @property
    def sides(self) -> Tensor:
        return torch.isin(self.digits, torch.tensor(ONE_SIDE)).float()


def run_demo(out: Path, console: Console) -> dict[str, xr.DataArray]:
    """Train, measure, print a table, write a figure. Under a minute on two cores."""
    began = time.monotonic()
    train, held_out, origin = _digits()
    console.print(f"[bold]Data[/bold]   {escape(origin)}", soft_wrap=True, markup=True)
    net = fnn(784, width=WIDTH)
    accuracy = _train(net, train, held_out, console)
    sides = f"{ONE_SIDE[0]}s and {ONE_SIDE[1]}s from {OTHER_SIDE[0]}s and {OTHER_SIDE[1]}s"
    console.print(
        f"[bold]Net[/bold]    784-{WIDTH}-1, told {sides}: {accuracy:.1%} right on held-out images",
        soft_wrap=True,
        markup=True,
    )
    results = _measure(le.Problem.of(net, "half_mse"), held_out, console)
    console.print(_table(results))
    files = _figure(results, out / "similarity")
    for name, S in results.items():
        _replace(out / f"{name}.zarr", S)
    console.print(f"{le.locality(results['relative'])} The net was never told which digit is which.", soft_wrap=True)
    monitor, shown = _watch(console, out / "training.zarr")
    ten, two = "ten digits, during training", f"a net that separates {sides}"
    console.print(_of_ten_digits(monitor), soft_wrap=True, markup=False)
    page = le.write_report(
        {
            ten: monitor,
            two: results["relative"],
            "its 3s and 6s, clustered without labels": _clusters(results["kernel"]),
        },
        out / "report.html",
        examples=shown,
        title="Whose predictions move? Handwritten digits",
        command="make demo",
        about={"data": origin, **dict(zip((ten, two), _recipes(), strict=True))},
    )
    console.print(f"[bold]Wrote[/bold]  {escape(', '.join(map(str, files)))}", soft_wrap=True, markup=True)
    console.print(
        f"       {escape(f'{out}/relative.zarr and {out}/kernel.zarr')}: read one with le.load(...)",
        soft_wrap=True,
        markup=True,
    )
    console.print(
        f"       {escape(f'{out}/training.zarr')}: the net of ten digits at {len(WATCHED_AT)} moments, read it with "
        "le.training.History.open(...)",
        soft_wrap=True,
        markup=True,
    )
    console.print(
        f"[bold]Open[/bold]   {escape(str(page.resolve()))} in a browser. It begins with a second net, watched while "
        "it learns ten digits. Under Run, choose the net described here.",
        soft_wrap=True,
        markup=True,
    )
    console.print(f"[dim]{time.monotonic() - began:.0f} s[/dim]", markup=True)
    return results


def _digits() -> tuple[DemoDigits, DemoDigits, str]:
    data = le.data.load("mnist")
    classes = (*ONE_SIDE, *OTHER_SIDE)
    return (
        DemoDigits(*data.take(classes, TRAIN_PER_DIGIT)),
        DemoDigits(*data.take(classes, HELD_OUT_PER_DIGIT, split="test")),
        data.origin,
    )


def _train(net: nn.Module, train: DemoDigits, held_out: DemoDigits, console: Console) -> float:
    """Plain SGD on the squared loss, seeded; the share of held-out images on the right side."""
    generator = torch.Generator().manual_seed(0)
    for p in net.parameters():
        bound = (p.shape[1] if p.ndim > 1 else WIDTH) ** -0.5
        nn.init.uniform_(p, -bound, bound, generator=generator)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for _ in track(range(EPOCHS), "training", console=console, transient=True):
        for rows in torch.randperm(len(train.images), generator=generator).split(BATCH):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(train.images[rows])[:, 0], train.sides[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        return float(((net(held_out.images)[:, 0] > 0.5) == held_out.sides.bool()).float().mean())


def _measure(problem: le.Problem, held_out: DemoDigits, console: Console) -> dict[str, xr.DataArray]:
    results = {}
    with Progress(console=console, transient=True) as bars:
        for measure in ("relative", "kernel"):
            task = bars.add_task(f"{measure}: one step on each image", total=len(held_out.images))
            results[measure] = le.similarity(
                problem,
                sources=(held_out.images, held_out.sides),
                measure=measure,
                update=le.SGD(STEP_SIZE),
                source_labels=held_out.digits,
                examples=held_out.images,
                progress=partial(_show, bars, task),
            )
    return results


def _watch(console: Console, store: Path) -> tuple[le.Monitor, Tensor]:
    """Train a second net to name all ten digits, and look at it now and then: when does its learning become local?"""
    shutil.rmtree(store, ignore_errors=True)
    data = le.data.load("mnist")
    x, y = data.take(TEN, TRAIN_PER_DIGIT)
    shown, labels = data.take(TEN, WATCHED_PER_DIGIT, split="test")
    generator = torch.Generator().manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, WATCHED_WIDTH), nn.ReLU(), nn.Linear(WATCHED_WIDTH, len(TEN)))
    for p in net.parameters():
        nn.init.uniform_(p, -(784**-0.5), 784**-0.5, generator=generator)
    optimizer = torch.optim.SGD(net.parameters(), lr=WATCHED_RATE)
    monitor = le.Monitor(
        net,
        (shown, labels),
        loss="cross_entropy",
        measure=("kl", "relative_l1"),
        schedule=WATCHED_AT,
        budget=None,
        update=le.SGD(STEP_SIZE),
        store=store,
    )
    for step in track(range(WATCHED_AT[-1] + 1), "watching a net learn ten digits", console=console, transient=True):
        monitor.step(step)
        rows = torch.randint(len(x), (BATCH,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    return monitor, shown


def _of_ten_digits(monitor: le.Monitor) -> str:
    """What the page opens with: how local learning is at the end, and the three most coupled digits."""
    history = monitor.history
    options = {"source_labels": history.source_classes, "target_labels": history.target_classes, "measure": "kl"}
    last = le.as_similarity(history[-1].similarity["kl"], square=True, **options)
    coupled = str(last.le.coupled()).splitlines()[:3]
    step = f"The second net, which learns all ten digits, at training step {history[-1].step}:"
    return "\n".join([f"{step} {le.locality(last).headline}", *(f"  {line}" for line in coupled)])


def _recipes() -> tuple[str, str]:
    """How the net of ten digits and the other one were trained and measured."""
    images = [f"{count:,}" for count in (len(TEN) * TRAIN_PER_DIGIT, len(TEN) * WATCHED_PER_DIGIT)]
    ten = (
        f"784-{WATCHED_WIDTH}-{len(TEN)} with ReLU, cross-entropy; SGD, learning rate {WATCHED_RATE:g}, "
        f"{WATCHED_AT[-1]} steps of {BATCH} images out of {images[0]}; random seed 1; measured as kl and relative_l1 "
        f"with one SGD step of size {STEP_SIZE:g} on each of {images[1]} held-out images"
    )
    count = len((*ONE_SIDE, *OTHER_SIDE))
    two = (
        f"784-{WIDTH}-1 with ReLU, squared loss; SGD, learning rate {RATE:g}, {EPOCHS} epochs of "
        f"{count * TRAIN_PER_DIGIT:,} images in batches of {BATCH}; random seed 0; measured with one SGD step of size "
        f"{STEP_SIZE:g} on each of {count * HELD_OUT_PER_DIGIT:,} held-out images"
    )
    return ten, two


def _clusters(K: xr.DataArray) -> xr.DataArray:
    """Kernel K-means on the side that holds two digits, which the net was never told apart (He & Su, Algorithm 1)."""
    ours = np.flatnonzero(np.isin(K["source_class"].values, ONE_SIDE))
    side = K.isel(source=ours, target=ours)
    clusters = le.KernelKMeans(len(ONE_SIDE), random_state=0).fit_predict((side.values + side.values.T) / 2)
    return side.le.with_clusters(clusters)


def _show(bars: Progress, task: TaskID, done: int, total: int) -> None:
    bars.update(task, completed=done, total=total)


def _relation(S: xr.DataArray) -> np.ndarray:
    """For every pair, the index in RELATIONS; −1 for an image with itself."""
    rows, columns = S["source_class"].values, S["target_class"].values
    same_side = np.isin(rows, ONE_SIDE)[:, None] == np.isin(columns, ONE_SIDE)
    relation = np.where(rows[:, None] == columns, 0, np.where(same_side, 1, 2))
    np.fill_diagonal(relation, -1)
    return relation


def _medians(S: xr.DataArray) -> list[float]:
    relation = _relation(S)
    return [float(np.nanmedian(S.values[relation == i])) for i in range(len(RELATIONS))]


def _table(results: dict[str, xr.DataArray]) -> Table:
    table = Table(title="Median similarity of an image x (the step) with another x′ (the prediction)")
    for heading in ("measure", *RELATIONS, "unresolved", "engine"):
        table.add_column(heading, justify="left" if heading in ("measure", "engine") else "right")
    for name, S in results.items():
        values = [f"{value:.3g}" for value in _medians(S)]
        table.add_row(name, *values, f"{S.attrs['unresolved']:.1%}", S.attrs["engine"])
    return table


def _figure(results: dict[str, xr.DataArray], path: Path) -> list[Path]:
    titles = {"relative": "relative similarity $S_{rel}$", "kernel": "kernelized similarity $S_{ker}$"}
    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 3.2)
        for axes, (name, S) in zip(made.subplots(1, 2), results.items(), strict=True):
            draw_similarity(axes, S, titles[name])
    return save_figure(made, path)


def _replace(path: Path, S: xr.DataArray) -> None:
    """The demo may be run again over its own results."""
    shutil.rmtree(path, ignore_errors=True)
    S.le.save(path)
