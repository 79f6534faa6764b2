"""Make the pictures of the documentation: the demo's nets, drawn by the library itself.

`python docs/pictures/make.py` writes them beside this file; the picture of the page needs Chromium and Playwright.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console

import local_elasticity as le
from local_elasticity import demo
from local_elasticity.report.figures import save_figure, similarity_figure

HERE = Path(__file__).parent


def main() -> None:
    console = Console(quiet=True)
    monitor, _ = demo._watch(console)
    last = le.as_similarity(
        monitor.history[-1].similarity["kl"], source_labels=monitor.history.source_classes, measure="kl"
    )
    keep(similarity_figure(last.clip(max=1.0), "KL similarity of ten digits, after training"), "matrix")
    keep(locality_figure(monitor), "curves")
    with tempfile.TemporaryDirectory() as folder:
        results = demo.run_demo(Path(folder), console)
        keep(similarity_figure(results["kernel"], "kernelized similarity"), "kernel")
        photograph(Path(folder) / "report.html", HERE / "report.png")


def keep(figure: object, name: str) -> None:
    """The PNG alone: pages show it, and print uses the library's own SVG."""
    save_figure(figure, HERE / name)  # type: ignore[arg-type]
    (HERE / f"{name}.svg").unlink()


def locality_figure(monitor: le.Monitor) -> object:
    import matplotlib as mpl

    from local_elasticity.report.curves import draw_within_and_between
    from local_elasticity.report.figures import STYLE, TWO_COLUMNS, figure

    frame = monitor.frame(resamples=0)
    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 2.6)
        axes = made.subplots()
        draw_within_and_between(axes, frame[frame.measure == "kl"])
        axes.set(xlabel="training step", ylabel="KL similarity", xscale="symlog", title="a step on a digit moves …")
        axes.legend()
    return made


def photograph(page: Path, out: Path) -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("Chromium is not here: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1200, "height": 900})
        view.goto(f"file://{page}#matrix?run=0&measure=0&source=67&target=140")
        view.wait_for_selector("html[data-ready]", timeout=60_000)
        view.wait_for_timeout(1000)
        view.screenshot(path=out)
        browser.close()


if __name__ == "__main__":
    main()
