"""Engines against loops: seconds for all n sources and m targets, as ratios within one run.

    python benchmarks/engines.py                 # on the CPU
    python benchmarks/engines.py --device cuda   # on a GPU

Two loops are beaten against. *Released* is written as the papers' code does it: restore the weights, one step of
torch.optim, predictions of all targets in batches of 50. *Good* is what a careful researcher writes: one functional
step, one batched forward pass. Loops are timed on some rows, before and after the engine they are held against, and
scaled to all; engines run whole. A ratio is taken within a turn, and the median over turns is reported.
Figures go to benchmarks/results/engines-<device>.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

import local_elasticity as le

RESULTS = Path(__file__).parent / "results"
LOOP_ROWS = 24
REPEATS = 3
STEP_SIZE = 1e-3


@dataclass(frozen=True)
class Case:
    name: str
    net: nn.Module
    loss: str
    x: Tensor
    y: Tensor

    @property
    def n(self) -> int:
        return len(self.x)

    def loss_of(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (
            nn.functional.mse_loss(outputs[:, 0], labels)
            if self.loss == "mse"
            else nn.functional.cross_entropy(outputs, labels)
        )


def cases(device: str, quick: bool) -> list[Case]:
    torch.manual_seed(0)
    n = 60 if quick else 500
    images, digits = mnist(n)
    binary = (digits == digits[0]).float()
    thirty_two = torch.randn(60, 3, 32, 32)
    made = [
        Case(f"784-4096-1, n=m={n}", le.models.fnn(784, width=4096), "mse", images, binary),
        Case(f"MNIST CNN, n=m={n}", le.models.cnn(), "mse", images, binary),
        Case("ResNet-18, 60x60", le.models.ResNet18(3), "cross_entropy", thirty_two, torch.arange(60) % 3),
    ]
    return [Case(c.name, c.net.to(device), c.loss, c.x.to(device), c.y.to(device)) for c in made]


def mnist(n: int) -> tuple[Tensor, Tensor]:
    """Real digits where there are any, noise of the same shape on a bare machine."""
    try:
        return le.data.load("mnist").take([3, 5], per_class=n // 2)
    except (ImportError, FileNotFoundError):
        return torch.rand(n, 1, 28, 28) * 2 - 1, torch.arange(n) % 2


def released_loop(case: Case, rows: int) -> None:
    """Restore, step, predict in batches of 50."""
    model, still = copy.deepcopy(case.net), copy.deepcopy(case.net)
    for i in range(rows):
        optimizer = torch.optim.SGD(model.parameters(), lr=STEP_SIZE)
        model.load_state_dict(still.state_dict())
        optimizer.zero_grad()
        case.loss_of(model(case.x[i : i + 1]), case.y[i : i + 1]).backward()
        optimizer.step()
        model.eval()
        np.concatenate([model(case.x[j : j + 50]).detach().cpu().numpy() for j in range(0, case.n, 50)])
        model.train()


def good_loop(case: Case, rows: int) -> None:
    """One functional step, one batched forward pass."""
    net = case.net.eval()
    params = {name: p.detach() for name, p in net.named_parameters()}
    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
    before = torch.zeros(1, device=case.x.device)
    for i in range(rows):
        loss = case.loss_of(functional_call(net, leaves, (case.x[i : i + 1],)), case.y[i : i + 1])
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        with torch.no_grad():
            after = {name: p - STEP_SIZE * g for (name, p), g in zip(params.items(), gradients, strict=True)}
            functional_call(net, after, (case.x,)) - before


def engine(case: Case, name: str) -> le.Response:
    problem = le.Problem.of(case.net, case.loss)
    return le.respond(problem, (case.x, case.y), update=le.SGD(STEP_SIZE), engine=name, progress=False)


def seconds(work: Callable[[], object], device: str) -> float:
    _wait(device)
    began = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - began


def measure(case: Case, device: str, repeats: int) -> dict[str, object]:
    """Turns of: loops, engine, loops again, so that a slow spell of the machine hits all of them."""
    rows = min(LOOP_ROWS, case.n)
    response = engine(case, "auto")
    released_loop(case, 2)
    good_loop(case, 2)

    def loops() -> dict[str, float]:
        ways = {"released": released_loop, "good": good_loop}
        return {name: seconds(partial(way, case, rows), device) * case.n / rows for name, way in ways.items()}

    turns = []
    for _ in range(repeats):
        before = loops()
        auto = seconds(lambda: engine(case, "auto"), device)
        after = loops()
        linearized = seconds(lambda: engine(case, "linearized"), device)
        mean = {name: (before[name] + after[name]) / 2 for name in before}
        turns.append({**mean, "auto": auto, "linearized": linearized})
    return {
        "case": case.name,
        "seconds": {name: statistics.median(turn[name] for turn in turns) for name in turns[0]},
        "turns": turns,
        "loop rows timed": 2 * rows,
        "auto": list(response.notes),
        "engine": response.engine,
        "released / auto": statistics.median(turn["released"] / turn["auto"] for turn in turns),
        "good / auto": statistics.median(turn["good"] / turn["auto"] for turn in turns),
        "auto / linearized": statistics.median(turn["auto"] / turn["linearized"] for turn in turns),
        "peak memory GiB": _peak_memory(device),
    }


def verdicts(results: list[dict[str, object]], device: str) -> list[tuple[str, float, str]]:
    """What was aimed at, what came out, pass or miss."""
    by_name = {str(result["case"]).split(",")[0]: result for result in results}
    wide, cnn, resnet = by_name["784-4096-1"], by_name["MNIST CNN"], by_name["ResNet-18"]
    if device != "cpu":
        return [_verdict("ResNet-18 60x60: good loop / auto at least 5", resnet["good / auto"], 5.0)]
    return [
        _verdict("784-4096-1: released loop / auto at least 1.2", wide["released / auto"], 1.2),
        *[
            _verdict(f"{name}: good loop / auto at least 0.9", result["good / auto"], 0.9)
            for name, result in by_name.items()
        ],
        _verdict("MNIST CNN: auto / linearized at least 8", cnn["auto / linearized"], 8.0),
    ]


def _verdict(what: str, value: object, least: float) -> tuple[str, float, str]:
    ratio = float(value)  # type: ignore[arg-type]
    return what, ratio, "pass" if ratio >= least else "miss"


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _peak_memory(device: str) -> float:
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="few sources, one turn: to see that it runs")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    results = []
    for case in cases(options.device, options.quick):
        results.append(measure(case, options.device, 1 if options.quick else REPEATS))
        line = ", ".join(f"{name} {value:.3g} s" for name, value in results[-1]["seconds"].items())  # type: ignore[attr-defined]
        print(f"{case.name}: {line} ({results[-1]['engine']})", flush=True)
    machine = (
        f"one {torch.cuda.get_device_name()}"
        if options.device.startswith("cuda")
        else f"{torch.get_num_threads()} CPU cores"
    )
    report = {
        "machine": machine,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "turns": 1 if options.quick else REPEATS,
        "results": results,
        "verdicts": verdicts(results, options.device),
    }
    out = options.out or RESULTS / f"engines-{options.device.split(':')[0]}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    for what, ratio, verdict in report["verdicts"]:  # type: ignore[misc, attr-defined]
        print(f"{verdict:5} {ratio:8.2f}  {what}")


if __name__ == "__main__":
    main()
