"""The linear response by Jacobians and by differences, for several numbers of sources and outputs.

    python benchmarks/linear.py            # figures to results/linear-cpu.json

Networks have about 100 000 parameters, and sources are targets. Seconds are those of the processor, on one thread, the
best of two runs; *loop* is the exact response. *sources an output* is where both would take the same time, if the time
by differences goes with the sources and that by Jacobians with the outputs.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

import local_elasticity as le
from local_elasticity.engine.job import Job, Runner
from local_elasticity.engine.linearized import LinearizedRunner
from local_elasticity.engine.looped import LoopedRunner
from local_elasticity.engine.structured import LimitRunner
from modern import Recurrent, logits, small_cnn, vit

RESULTS = Path(__file__).parent / "results" / "linear-cpu.json"
RUNNERS = {"jacobians": LinearizedRunner, "differences": LimitRunner, "loop": LoopedRunner}
SIZES = [(50, 1), (50, 10), (50, 40), (10, 10)]
REPEATS = 2


def mlp(k: int) -> nn.Module:
    widths = [784, 112, 80, 40]
    layers = [part for d, o in pairwise(widths) for part in (nn.Linear(d, o), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], k))


def with_outputs(net: nn.Module, name: str, k: int) -> nn.Module:
    """The network with another last layer."""
    last = net.get_submodule(name)
    assert isinstance(last, nn.Linear)
    net.set_submodule(name, nn.Linear(last.in_features, k))
    return net


NETWORKS: dict[str, tuple[Callable[[int], nn.Module], tuple[int, ...]]] = {
    "MLP": (mlp, (784,)),
    "CNN": (lambda k: with_outputs(small_cnn(), "9", k), (3, 32, 32)),
    "LSTM": (lambda k: with_outputs(Recurrent(nn.LSTM, 140), "head", k), (20, 32)),
    "GRU": (lambda k: with_outputs(Recurrent(nn.GRU, 160), "head", k), (20, 32)),
    "ViT": (lambda k: with_outputs(vit(64, 2, 4, 4, 32), "classifier", k), (3, 32, 32)),
}


def seconds(job: Job, kind: Callable[[Job], Runner]) -> float:
    """Of all rows, without the checks of the first call."""

    def run() -> None:
        runner = kind(job)
        for start in range(0, job.n, runner.chunk):
            runner.rows(start, min(job.n, start + runner.chunk))

    run()
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return min(times)


def measured(name: str, n: int, k: int) -> dict[str, float]:
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    labels = torch.arange(n) % k if k > 1 else torch.randn(n, 1)
    options = {"output": logits} if name == "ViT" else {}
    problem = le.Problem.of(make(k).eval(), "cross_entropy" if k > 1 else "mse", **options)
    with problem.bound() as bound:
        job = Job.read(bound, (torch.randn(n, *shape), labels), None, le.SGD(1e-3))
        found = {way: seconds(job, kind) for way, kind in RUNNERS.items()}
    found["sources an output"] = n / k * found["jacobians"] / found["differences"]
    return found


def main() -> None:
    torch.set_num_threads(1)
    results: dict[str, dict[str, float]] = {}
    for name in NETWORKS:
        for n, k in SIZES:
            results[f"{name}, {n} sources, {k} outputs"] = found = measured(name, n, k)
            print(name, n, k, json.dumps(found), flush=True)
    machine = f"one thread of {platform.processor() or platform.machine()}"
    versions = {"torch": torch.__version__, "local_elasticity": le.__version__}
    RESULTS.write_text(json.dumps({"machine": machine, "versions": versions, "measured": results}, indent=1))


if __name__ == "__main__":
    main()
