"""How many files of the package one call passes through: the second of two equal calls, counted by sys.setprofile.

Writes benchmarks/results/walk.json. Run: python benchmarks/walk.py
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
LIMITS = {"similarity": 15, "similarity(store=)": 22, "Monitor.step": 22, "LocalElasticityClustering.fit": 28}


def files_of(call: Callable[[], Any]) -> list[str]:
    """The files of ours in which a function runs during a call."""
    seen: set[str] = set()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return sorted(str(Path(file).relative_to(PACKAGE)) for file in seen if file.startswith(str(PACKAGE)))


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
    engine = len(list((PACKAGE / "engine").rglob("*.py")))
    for name, files in found.items():
        print(f"{name}: {len(files)} files (target: at most {LIMITS[name]})")
        if "-v" in sys.argv:
            print("  " + " ".join(files))
    print(f"{lines:,} source lines, {engine} files under engine/")
    counts = {name: len(files) for name, files in found.items()}
    RESULTS.write_text(json.dumps({"files": counts, "source_lines": lines, "engine_files": engine}, indent=2) + "\n")


if __name__ == "__main__":
    main()
