"""How many files of the package one call passes through: the second of two equal calls, counted by sys.setprofile.

The number depends on the engine that wins the race in the first call, which is printed: differences pass through about
twelve files more than the loop. Writes benchmarks/results/walk.json. Run: python benchmarks/walk.py
"""

import json
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import local_elasticity as le

PACKAGE = Path(le.__file__).parent
RESULTS = Path(__file__).parent / "results" / "walk.json"
ENGINES = ("structured", "linearized", "vmapped", "looped")
"""The loop comes last, since others are compared with it."""

LIMITS = {"similarity": 15, "similarity(store=)": 22, "Monitor.step": 22, "LocalElasticityClustering.fit": 28}


def files_of(call: Callable[[], Any]) -> tuple[list[str], str]:
    """The files of ours in which a function runs during a call, and the engine that ran."""
    seen: set[str] = set()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    files = sorted(str(Path(file).relative_to(PACKAGE)) for file in seen if file.startswith(str(PACKAGE)))
    return files, next((name for name in ENGINES if f"engine/{name}.py" in files), "")


def calls(folder: Path) -> dict[str, Callable[[], Any]]:
    """Every call once, so that the next is the second of two equal ones; stores and steps are new each time."""
    torch.manual_seed(0)
    sizes = (5, 16, 16, 3)
    layers = [part for a, b in pairwise(sizes) for part in (torch.nn.Linear(a, b), torch.nn.Tanh())]
    net, x, y = torch.nn.Sequential(*layers[:-1]), torch.randn(30, 5), torch.arange(30) % 3
    problem = le.Problem.of(net, "cross_entropy")
    monitor = le.Monitor(problem, (x, y), measure="kl", every=1, budget=None)
    steps, stores = iter(range(100)), iter(range(100))
    return {
        "similarity": lambda: le.similarity(problem, (x, y), measure="kl"),
        "similarity(store=)": lambda: le.similarity(
            problem, (x, y), measure="kl", store=folder / f"{next(stores)}.zarr", progress=False
        ),
        "Monitor.step": lambda: monitor.step(next(steps)),
        "LocalElasticityClustering.fit": lambda: le.LocalElasticityClustering(n_clusters=2, epochs=2).fit(x.numpy()),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for name, call in calls(Path(folder)).items():
            call()
            found[name] = files_of(call)
    lines = sum(len(file.read_text().splitlines()) for file in PACKAGE.rglob("*.py"))
    engine_files = len(list((PACKAGE / "engine").rglob("*.py")))
    for name, (files, engine) in found.items():
        print(f"{name}: {len(files)} files with the engine {engine} (target: at most {LIMITS[name]})")
        if "-v" in sys.argv:
            print("  " + " ".join(files))
    print(f"{lines:,} source lines, {engine_files} files under engine/")
    counts = {name: {"files": len(files), "engine": engine} for name, (files, engine) in found.items()}
    written = {"calls": counts, "source_lines": lines, "engine_files": engine_files}
    RESULTS.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
