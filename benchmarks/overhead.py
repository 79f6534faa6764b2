"""What a call costs beside its arithmetic: small responses of this source tree against those of another one.

    git worktree add ../other COMMIT
    python benchmarks/overhead.py --other ../other/src                # on the CPU
    python benchmarks/overhead.py --other ../other/src --device cuda

Both trees are timed in turns, each turn in a process of its own, so that a slow spell of the machine hits both. A ratio
is the median over turns of this tree's time over the other's. Figures go to benchmarks/results/overhead-<device>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SECONDS = 0.25


def timings(device: str) -> dict[str, float]:
    """Seconds of one call of each kind, the best of several."""
    import torch
    from torch import nn

    import local_elasticity as le

    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.randn(24, 8, device=device), torch.arange(24, device=device) % 3
    nets = {
        "linear": nn.Linear(8, 3),
        "two layers": nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)),
        "three layers": nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3)),
    }
    found = {}
    for name, net in nets.items():
        problem = le.Problem.of(net.to(device), "cross_entropy")
        monitor = le.Monitor(problem, (x, y), every=1, budget=None)
        calls = {
            "auto": lambda problem=problem: le.respond(problem, (x, y), progress=False),
            "structured": lambda problem=problem: le.respond(problem, (x, y), engine="structured", progress=False),
            "ntk": lambda problem=problem: le.ntk(problem, x, progress=False),
            "similarity": lambda problem=problem: le.similarity(problem, (x, y), progress=False),
            "probe": lambda monitor=monitor: monitor.step(1 + (monitor.history.steps or [0])[-1]),
        }
        for what, call in calls.items():
            found[f"{name}, {what}"] = _best(call, device)
    torch.set_num_threads(2)
    digits, label = torch.rand(500, 784, device=device), (torch.arange(500, device=device) % 2).float()
    wide = le.Problem.of(le.models.fnn(784, width=4096).to(device), "mse")
    found["784-4096-1 with 500 examples, auto"] = _best(
        lambda: le.respond(wide, (digits, label), update=le.SGD(1e-6), progress=False), device
    )
    return found


def _best(call: object, device: str) -> float:
    import torch

    for _ in range(5):
        call()
    taken, began = [], time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def run(source: Path, device: str) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", __file__, "--measure", "--device", device]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--other", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(timings(options.device)))
        return
    here = HERE.parent / "src"
    turns = [(run(here, options.device), run(options.other.resolve(), options.device)) for _ in range(options.turns)]
    rows = {
        name: {
            "ms": round(1e3 * statistics.median(ours[name] for ours, _ in turns), 3),
            "other_ms": round(1e3 * statistics.median(others[name] for _, others in turns), 3),
            "ratio": round(statistics.median(ours[name] / others[name] for ours, others in turns), 3),
        }
        for name in turns[0][0]
    }
    for name, row in rows.items():
        print(f"{name:28} {row['ms']:9.3f} ms  {row['other_ms']:9.3f} ms  {row['ratio']:.2f}")
    options.out.mkdir(parents=True, exist_ok=True)
    found = {"turns": options.turns, "rows": rows}
    (options.out / f"overhead-{options.device}.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
