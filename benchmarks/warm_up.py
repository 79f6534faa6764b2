"""The warm-up of Algorithm 1: nets in a stack against PyTorch's own loop, and against their matrix products alone.

`python benchmarks/warm_up.py [--device cuda] [--width 40960] [--nets 10]` writes its figures into benchmarks/results.
All figures are ratios within one run. The data are MNIST's 5 vs 8 with 3 and 9, 2000 images, batches of 50.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from local_elasticity.models.small import fnn
from local_elasticity.papers.he2020local.task import MNIST_TASKS, draw
from local_elasticity.papers.he2020local.warm_up import TrainingTask, WarmUpSchedule, learn_one, learn_two_layers


def main() -> None:
    options = _options()
    device, width, nets, epochs = options.device, options.width, options.nets, options.epochs
    samples = draw(MNIST_TASKS[0], per_class=500, auxiliary=1000, seed=0, reading="as_released")
    tasks = [TrainingTask(samples.x, samples.labels(0.0), options.rate, seed) for seed in range(nets)]
    schedule = WarmUpSchedule("l2", epochs, batch_size=50)
    learned = learn_two_layers(tasks[:1], schedule, width=width, activation="relu", device=device)[0]
    r, kept = learned.x.shape[1], len(next(learned.net.parameters()))

    def stacked() -> None:
        learn_two_layers(tasks, schedule, width=width, activation="relu", device=device)

    def plain() -> None:
        learn_one(tasks[0], schedule, lambda: fnn(784, width=width), device)

    def products() -> None:
        x, W = torch.randn(nets, 50, r, device=device), torch.randn(nets, r, width, device=device)
        for _ in range(40 * epochs):
            W.baddbmm_(x.mT, torch.bmm(x, W), alpha=-1e-9)

    def linear() -> None:
        learn_two_layers(tasks, schedule, width=width, activation="linear", device=device)

    seconds = {work.__name__: _seconds(work, device) for work in (stacked, plain, products, linear)}
    result = {
        "device": torch.cuda.get_device_name() if device == "cuda" else f"cpu, {torch.get_num_threads()} threads",
        "width": width,
        "nets": nets,
        "epochs": epochs,
        "rate": options.rate,
        "columns after gathering still pixels": r,
        "units left at the end": kept,
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "stacked net against PyTorch's loop": round(seconds["plain"] * nets / seconds["stacked"], 2),
        "share of the time that its matrix products alone take": round(seconds["products"] / seconds["stacked"], 2),
        "linear net against PyTorch's loop": round(seconds["plain"] * nets / seconds["linear"], 2),
    }
    file = Path(__file__).parent / "results" / f"warm_up-{device}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n")
    print(file.read_text())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--nets", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rate", type=float, default=3e-5, help="small enough that no unit falls silent, unless asked")
    return parser.parse_args()


def _seconds(work: Callable[[], None], device: str) -> float:
    """The best of three; on a CPU that others may use as well, the processor's time."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    taken = []
    for _ in range(3):
        began = clock()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(clock() - began)
    return min(taken)


if __name__ == "__main__":
    main()
