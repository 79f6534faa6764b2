"""Make the pictures of the documentation, beside this file.

    python docs/pictures/make.py [decisions] [demo] [page] [tokens]

`decisions` are those of the home page, `demo` the figures of the demo's nets, `page` the first screen of the demo's
report, `tokens` the marked text of how-to/language.md. The last two need Chromium and Playwright. Without a word, all
of them.
"""

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
import xarray as xr
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from sklearn.datasets import load_digits
from torch import nn

import local_elasticity as le
from local_elasticity import demo
from local_elasticity.report.figures import ONE_COLUMN, STYLE, figure, save_figure

HERE = Path(__file__).parent


def main() -> None:
    chosen = sys.argv[1:] or ["decisions", "demo", "page", "tokens"]
    console = Console(quiet=True)
    if "decisions" in chosen:
        draw_decisions()
    if "demo" in chosen:
        with tempfile.TemporaryDirectory() as folder:
            monitor, _ = demo._watch(console, Path(folder) / "training.zarr")
            last = le.as_similarity(
                monitor.history[-1].similarity["kl"], source_labels=monitor.history.source_classes, measure="kl"
            )
            keep(last.le.plot(), "matrix")
            keep(last.le.plot(by="class"), "classes")
            keep(monitor.plot(), "curves")
    if {"demo", "page"} & set(chosen):
        with tempfile.TemporaryDirectory() as folder:
            results = demo.run_demo(Path(folder), console)
            if "demo" in chosen:
                keep(results["kernel"].le.plot(), "kernel")
            if "page" in chosen:
                photograph(Path(folder) / "report.html", HERE / "report.png")
    if "tokens" in chosen:
        sys.path.insert(0, str(HERE.parent))
        from outputs import run

        names: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            list(run((HERE.parent / "how-to" / "language.md").read_text(), names))
            photograph(names["page"].resolve(), HERE / "tokens.png", "#tokens")


def draw_decisions() -> None:
    """Helpers and harmers of one image, what a fine-tune breaks, and coupled classes: one small net on digits."""
    X, y = load_digits(return_X_y=True)
    X, y = torch.tensor(X / 16, dtype=torch.float32), torch.tensor(y)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X[:1000]), y[:1000]).backward()
        optimizer.step()
    options = {"loss": "cross_entropy", "update": le.SGD(1e-3)}
    test = X[1500:], y[1500:]
    S = le.similarity(net, (X[:500], y[:500]), test, measure="loss", **options)
    keep(helpers_figure(S, X[:500], test[0][0]), "helpers")
    wrong = torch.nonzero(net(X[1000:]).argmax(1) != y[1000:]).flatten()[:8] + 1000
    new, old = (X[wrong], y[wrong]), (X[1000:], y[1000:])
    forecast = le.forecast(net, new, old, loss="cross_entropy", update=le.SGD(0.01), steps=20, virtual=3)
    keep(forecast.plot(), "forecast")
    rows = torch.cat([1000 + torch.nonzero(y[1000:] == digit).flatten()[:20] for digit in range(10)])
    keep(le.similarity(net, (X[rows], y[rows]), measure="relative", **options).le.plot(by="class"), "coupled")


def helpers_figure(S: xr.DataArray, sources: torch.Tensor, target: torch.Tensor) -> Figure:
    """One image, the four that help it most and the four that harm it most."""
    found = S.le.nearest(target=0, top=4)
    with mpl.rc_context(STYLE):
        made = figure(ONE_COLUMN, 0.8 * ONE_COLUMN)
        panels = made.subplots(3, 4)
        for axes in panels.flat:
            axes.axis("off")
        panels[0, 0].imshow(target.reshape(8, 8), cmap="gray_r")
        panels[0, 0].set_title("test image", loc="left")
        for row, effect in ((1, "helps"), (2, "harms")):
            for axes, one in zip(panels[row], found[found.effect == effect].itertuples(), strict=True):
                axes.imshow(sources[one.source].reshape(8, 8), cmap="gray_r")
                axes.set_title(f"{effect} {one.value:+.2f}", fontsize=7)
    return made


def keep(made: Figure, name: str) -> None:
    """The PNG alone: pages show it, and print uses the library's own SVG."""
    save_figure(made, HERE / name)
    (HERE / f"{name}.svg").unlink()


def photograph(page: Path, out: Path, part: str | None = None) -> None:
    """The first screen of a page, or a part of it."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("Chromium is not here: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1280, "height": 900})
        view.goto(f"file://{page}")
        view.wait_for_selector("html[data-ready]", timeout=60_000)
        view.wait_for_timeout(1000)
        if part is None:
            view.screenshot(path=out)
            Image.open(out).quantize(256, dither=Image.Dither.NONE).save(out, optimize=True)  # a third of the bytes
        else:
            view.locator(part).screenshot(path=out)
        browser.close()


if __name__ == "__main__":
    main()
