"""Make the pictures of the documentation: the demo's nets, drawn by the calls that the gallery shows.

`python docs/pictures/make.py` writes them beside this file; the picture of the page needs Chromium and Playwright.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console

import local_elasticity as le
from local_elasticity import demo
from local_elasticity.report.figures import save_figure

HERE = Path(__file__).parent


def main() -> None:
    console = Console(quiet=True)
    monitor, _ = demo._watch(console)
    last = le.as_similarity(
        monitor.history[-1].similarity["kl"], source_labels=monitor.history.source_classes, measure="kl"
    )
    keep(last.le.plot(), "matrix")
    keep(monitor.plot(), "curves")
    with tempfile.TemporaryDirectory() as folder:
        results = demo.run_demo(Path(folder), console)
        keep(results["kernel"].le.plot(), "kernel")
        photograph(Path(folder) / "report.html", HERE / "report.png")


def keep(made: Figure, name: str) -> None:
    """The PNG alone: pages show it, and print uses the library's own SVG."""
    save_figure(made, HERE / name)
    (HERE / f"{name}.svg").unlink()


def photograph(page: Path, out: Path) -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("Chromium is not here: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1280, "height": 800})
        view.goto(f"file://{page}")
        view.wait_for_selector("html[data-ready]", timeout=60_000)
        view.wait_for_timeout(1000)
        view.screenshot(path=out)
        browser.close()


if __name__ == "__main__":
    main()
