"""How quick the report's page is: until the first chart, a step of the slider, and building a large one.

    python benchmarks/report_page.py

It opens the demo's page in Chromium (`apt-get install chromium`), reads when the first screen was drawn, moves the
slider, and builds a page of 1000 × 1000 similarities at 50 steps. Figures go to benchmarks/results/report_page-cpu.json
with the load of the machine, since a busy machine is slow.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
AIMS = {"first chart, s": 1.5, "slider, ms": 150, "large page, MB": 15, "large page, s to build": 20}
TIMES = 5
SLIDE = """async () => {
  const took = [];
  for (let k = 0; k < panel().steps.length; k++) {
    const began = performance.now();
    choose({ when: k });
    await draw();
    await new Promise((done) => requestAnimationFrame(done));
    took.push(performance.now() - began);
  }
  return took;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, help="The demo's folder, where it was run already.")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        demo = asked.demo or made_demo(Path(folder))
        large, seconds, busy = large_page(Path(folder))
        figures = {
            **opened(demo / "report.html"),
            "large page, MB": large.stat().st_size / 1e6,
            "large page, s to build": seconds,
            "large page, s of CPU to build": busy,
            **{f"large page, {name}": value for name, value in opened(large, 2).items()},
        }
    report = {
        "machine": f"{os.cpu_count()} cores",
        "load": os.getloadavg()[0],
        "figures": {name: round(value, 3) for name, value in figures.items()},
        "verdicts": [
            [f"{name} < {aim}", round(figures[name], 3), "pass" if figures[name] < aim else "miss"]
            for name, aim in AIMS.items()
        ],
    }
    (HERE / "results" / "report_page-cpu.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def made_demo(folder: Path) -> Path:
    from rich.console import Console

    from local_elasticity.demo import run_demo

    run_demo(folder / "demo", Console(quiet=True))
    return folder / "demo"


def large_page(folder: Path) -> tuple[Path, float, float]:
    """1000 × 1000 similarities at 50 steps, with a thousand digits as examples; seconds of the clock and of the CPU."""
    import numpy as np

    import local_elasticity as le
    from local_elasticity.training.history import History, Probe

    rng, kinds = np.random.default_rng(0), np.arange(1000) % 10
    same = kinds[:, None] == kinds
    history = History(["kl"], kinds.tolist(), kinds.tolist(), square=True)
    for step in range(50):
        S = np.where(same, 1.0, 1 / (1 + step / 5)) * rng.lognormal(size=(1000, 1000))
        history.append(Probe(step, {"kl": S.astype(np.float32)}, 0.1, "looped"))
    pictures = le.data.load("mnist").take(range(10), 100)[0]
    began, busy = time.perf_counter(), time.process_time()
    page = le.write_report({"large": history}, folder / "large.html", examples=pictures)
    return page, time.perf_counter() - began, time.process_time() - busy


def opened(page: Path, times: int = TIMES) -> dict[str, float]:
    """Seconds until the first chart and until all are drawn, the median of several; milliseconds of the slider."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("Chromium is not here: apt-get install chromium")
    first, ready, slides = [], [], []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(times):
            view: Any = browser.new_page(viewport={"width": 1280, "height": 900})
            view.goto(f"file://{page.resolve()}")
            view.wait_for_selector("html[data-ready]", timeout=120_000)
            first.append(view.evaluate("performance.getEntriesByName('front')[0].startTime") / 1000)
            ready.append(view.evaluate("performance.getEntriesByName('ready')[0].startTime") / 1000)
            slides += view.evaluate(SLIDE)
            view.close()
        browser.close()
    return {
        "first chart, s": statistics.median(first),
        "all charts, s": statistics.median(ready),
        "slider, ms": statistics.median(slides),
        "slowest slider step, ms": max(slides),
    }


if __name__ == "__main__":
    main()
