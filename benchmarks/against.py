"""Two versions of the package against each other: seconds of the same calls, in turns within one run.

    python benchmarks/against.py --old /path/to/old/src                 # on the CPU
    python benchmarks/against.py --old /path/to/old/src --device cuda   # on a GPU

Every turn runs both versions in processes of their own, one after the other. A figure is the median over turns of the
ratio new / old within a turn. Figures go to benchmarks/results/against-<device>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
NEW = Path(__file__).parent.parent / "src"
TURNS, REPEATS = 5, 5


def calls(device: str) -> dict[str, Callable[[], Any]]:
    """What is timed; each is called once before."""
    import torch
    from torch import nn

    import local_elasticity as le

    torch.manual_seed(0)
    torch.set_num_threads(2 if device == "cpu" else 8)
    large = device != "cpu"

    def dense(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(20, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))

    small, wide = dense(16).to(device), dense(512).to(device)
    images = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 13 * 13, 10),
    ).to(device)
    two = nn.Sequential(nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 1)).to(device)
    n = 600 if large else 150
    x, y = torch.randn(n, 20, device=device), torch.arange(n, device=device) % 3
    pictures, digits = torch.randn(n // 5, 1, 28, 28, device=device), torch.arange(n // 5, device=device) % 10
    vectors, sides = torch.randn(n, 784, device=device), torch.randn(n, device=device)
    monitor = le.Monitor(small, (x[:60], y[:60]), loss="cross_entropy", measure=("kl",), every=1, budget=None)
    steps = iter(range(1_000_000))
    problem = {name: le.Problem.of(net, "cross_entropy") for name, net in (("small", small), ("wide", wide))}
    of_images, of_two = le.Problem.of(images, "cross_entropy"), le.Problem.of(two, "half_mse")
    return {
        "respond, 24 sources, small net": lambda: le.respond(problem["small"], (x[:24], y[:24])),
        "similarity kl, 24 sources, small net": lambda: le.similarity(problem["small"], (x[:24], y[:24]), measure="kl"),
        "respond, all sources, wide net": lambda: le.respond(problem["wide"], (x, y)),
        "respond, images": lambda: le.respond(of_images, (pictures, digits)),
        "respond, two layers": lambda: le.respond(of_two, (vectors, sides)),
        "ntk, wide net": lambda: le.ntk(problem["wide"], x),
        "Monitor.step, 60 sources, small net": lambda: (monitor.step(next(steps)), monitor.history),
        "clustering": lambda: le.LocalElasticityClustering(n_clusters=2, epochs=5, random_state=0).fit(x.cpu().numpy()),
    }


def timed(device: str) -> dict[str, float]:
    """Seconds of each call, the median of a few."""
    import torch

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    found = {}
    for name, call in calls(device).items():
        call()
        call()
        taken = []
        for _ in range(REPEATS):
            wait()
            began = time.perf_counter()
            call()
            wait()
            taken.append(time.perf_counter() - began)
        found[name] = statistics.median(taken)
    return found


def in_a_process(source: Path, device: str) -> dict[str, float]:
    path = os.pathsep.join([str(source), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, __file__, "--worker", "--device", device]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return found


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--old", type=Path)
    options.add_argument("--device", default="cpu")
    options.add_argument("--machine", default="")
    options.add_argument("--turns", type=int, default=TURNS)
    options.add_argument("--worker", action="store_true")
    given = options.parse_args()
    if given.worker:
        print(json.dumps(timed(given.device)))
        return
    turns = []
    for turn in range(given.turns):
        order = (given.old, NEW) if turn % 2 else (NEW, given.old)
        found = {source: in_a_process(source, given.device) for source in order}
        turns.append((found[given.old], found[NEW]))
    rows = {}
    for name in turns[0][0]:
        ratios = [new[name] / old[name] for old, new in turns]
        rows[name] = {
            "old_seconds": statistics.median(old[name] for old, _ in turns),
            "new_seconds": statistics.median(new[name] for _, new in turns),
            "new_over_old": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
        }
        row = rows[name]
        print(f"{name:40} {row['old_seconds']:9.4f} s {row['new_seconds']:9.4f} s   {row['new_over_old']:.2f}")
    file = RESULTS / f"against-{given.device}.json"
    file.write_text(json.dumps({"machine": given.machine, "turns": given.turns, "calls": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
